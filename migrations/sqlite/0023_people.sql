-- How people come in: one-time links, passwords, and the sessions of their browsers, which are called sign-ins, because a
-- session is a tunnel's.

-- What its owner calls a key.
ALTER TABLE api_keys ADD COLUMN name TEXT NOT NULL DEFAULT '';
CREATE INDEX api_keys_by_scope ON api_keys (scope_id, created_at, id);

CREATE TABLE passwords (
    account_id BLOB    NOT NULL PRIMARY KEY REFERENCES accounts (id),
    -- Argon2id, in the PHC string format.
    hash       TEXT    NOT NULL,
    changed_at INTEGER NOT NULL
) STRICT;

CREATE TABLE links (
    -- SHA-256 of the secret.
    hash       BLOB    NOT NULL PRIMARY KEY,
    account_id BLOB    NOT NULL REFERENCES accounts (id),
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX links_by_account ON links (account_id);
CREATE INDEX links_by_expiry ON links (expires_at);
CREATE INDEX device_codes_by_account ON device_codes (account_id, scope_id);

CREATE TABLE sign_ins (
    id             BLOB    NOT NULL PRIMARY KEY,
    -- SHA-256 of the cookie's value.
    hash           BLOB    NOT NULL CONSTRAINT sign_ins_hash UNIQUE,
    account_id     BLOB    NOT NULL REFERENCES accounts (id),
    method         TEXT    NOT NULL CHECK (method IN ('link', 'password')),
    -- The browser's address and what it calls itself.
    address        TEXT,
    agent          TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    last_seen_at   INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    -- Until then the person has just proved who it is.
    elevated_until INTEGER
) STRICT;
CREATE INDEX sign_ins_by_account ON sign_ins (account_id, last_seen_at);
CREATE INDEX sign_ins_by_expiry ON sign_ins (expires_at);
