-- Whom accounts are at other providers (OpenID Connect), with which people sign in.

CREATE TABLE identities (
    issuer       TEXT NOT NULL,
    subject      TEXT NOT NULL,
    account_id   BLOB NOT NULL REFERENCES accounts (id),
    -- The address that the provider knows, to be shown.
    email        TEXT,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    PRIMARY KEY (issuer, subject)
) STRICT;
CREATE INDEX identities_by_account ON identities (account_id);

-- From here on, what each engine says in its own way.

CREATE TABLE sign_ins_with_oidc (
    id             BLOB    NOT NULL PRIMARY KEY,
    -- SHA-256 of the cookie's value.
    hash           BLOB    NOT NULL CONSTRAINT sign_ins_hash UNIQUE,
    account_id     BLOB    NOT NULL REFERENCES accounts (id),
    method         TEXT    NOT NULL CHECK (method IN ('link', 'password', 'passkey', 'oidc')),
    address        TEXT,
    agent          TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    last_seen_at   INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    elevated_until INTEGER
) STRICT;
INSERT INTO sign_ins_with_oidc SELECT * FROM sign_ins;
DROP TABLE sign_ins;
ALTER TABLE sign_ins_with_oidc RENAME TO sign_ins;
CREATE INDEX sign_ins_by_account ON sign_ins (account_id, last_seen_at);
CREATE INDEX sign_ins_by_expiry ON sign_ins (expires_at);
