-- Accounts that an operator has locked: nobody signs in, and their keys and devices are good for nothing until they are unlocked.

ALTER TABLE accounts ADD COLUMN locked_at BIGINT;
CREATE INDEX accounts_locked ON accounts (id) WHERE locked_at IS NOT NULL;
