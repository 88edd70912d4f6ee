-- Passkeys, with which people sign in without a password (WebAuthn).

CREATE TABLE passkeys (
    id            BLOB    NOT NULL PRIMARY KEY,
    account_id    BLOB    NOT NULL REFERENCES accounts (id),
    -- What the authenticator calls it.
    credential_id BLOB    NOT NULL CONSTRAINT passkeys_credential UNIQUE,
    -- The public key, the counter and what else a check takes, as JSON.
    passkey       TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    last_used_at  INTEGER
) STRICT;
CREATE INDEX passkeys_by_account ON passkeys (account_id, created_at);

-- Answers to challenges that were accepted: each is good once.
CREATE TABLE used_challenges (
    -- SHA-256 of the challenge's token.
    hash       BLOB    NOT NULL PRIMARY KEY,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX used_challenges_by_expiry ON used_challenges (expires_at);

-- From here on, what each engine says in its own way.

CREATE TABLE sign_ins_with_passkeys (
    id             BLOB    NOT NULL PRIMARY KEY,
    hash           BLOB    NOT NULL CONSTRAINT sign_ins_hash UNIQUE,
    account_id     BLOB    NOT NULL REFERENCES accounts (id),
    method         TEXT    NOT NULL CHECK (method IN ('link', 'password', 'passkey')),
    address        TEXT,
    agent          TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    last_seen_at   INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    elevated_until INTEGER
) STRICT;
INSERT INTO sign_ins_with_passkeys SELECT * FROM sign_ins;
DROP TABLE sign_ins;
ALTER TABLE sign_ins_with_passkeys RENAME TO sign_ins;
CREATE INDEX sign_ins_by_account ON sign_ins (account_id, last_seen_at);
CREATE INDEX sign_ins_by_expiry ON sign_ins (expires_at);
