-- A generation that hosts only compare with what they have decided, and what a host has found, as JSON.

ALTER TABLE policy_generations ADD COLUMN is_trial BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE policy_stages ADD COLUMN found TEXT;
