-- Which generation of the policies decides, and the highest number that one was given.

ALTER TABLE cluster ADD COLUMN policy_generation BIGINT NOT NULL DEFAULT 0;
ALTER TABLE cluster ADD COLUMN newest_policy_generation BIGINT NOT NULL DEFAULT 0;

-- The generation that decides at a host; 0 before it has loaded one.

ALTER TABLE hosts ADD COLUMN policy_generation BIGINT NOT NULL DEFAULT 0;

-- The modules of the generations that are kept, by their SHA-256 in hexadecimal.

CREATE TABLE policy_modules (
    sha256 TEXT NOT NULL PRIMARY KEY,
    wasm BYTEA NOT NULL,
    signature BYTEA
);

-- A generation: its entries and default plan as JSON, authenticated by the key of the hosts; the digest of the configuration
-- that it was made from; and the numbers of the generations that a rollback leads to, most recent first. One that does not
-- decide by `expires_at` is forgotten.

CREATE TABLE policy_generations (
    number BIGINT NOT NULL PRIMARY KEY,
    content TEXT NOT NULL,
    mac BYTEA NOT NULL,
    configuration TEXT NOT NULL,
    earlier TEXT NOT NULL,
    is_rollback BOOLEAN NOT NULL,
    proposed_by UUID,
    expires_at BIGINT NOT NULL
);

-- Hosts that have loaded a generation, or why they cannot.

CREATE TABLE policy_stages (
    generation BIGINT NOT NULL,
    host_id UUID NOT NULL,
    problem TEXT,
    PRIMARY KEY (generation, host_id)
);
