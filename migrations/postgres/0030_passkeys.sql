-- Passkeys, with which people sign in without a password (WebAuthn).

CREATE TABLE passkeys (
    id            UUID    NOT NULL PRIMARY KEY,
    account_id    UUID    NOT NULL REFERENCES accounts (id),
    -- What the authenticator calls it.
    credential_id BYTEA   NOT NULL CONSTRAINT passkeys_credential UNIQUE,
    -- The public key, the counter and what else a check takes, as JSON.
    passkey       TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    created_at    BIGINT  NOT NULL,
    last_used_at  BIGINT
);
CREATE INDEX passkeys_by_account ON passkeys (account_id, created_at);

-- Answers to challenges that were accepted: each is good once.
CREATE TABLE used_challenges (
    -- SHA-256 of the challenge's token.
    hash       BYTEA   NOT NULL PRIMARY KEY,
    expires_at BIGINT  NOT NULL
);
CREATE INDEX used_challenges_by_expiry ON used_challenges (expires_at);

-- From here on, what each engine says in its own way.

ALTER TABLE sign_ins DROP CONSTRAINT sign_ins_method_check;
ALTER TABLE sign_ins ADD CONSTRAINT sign_ins_method_check CHECK (method IN ('link', 'password', 'passkey'));
