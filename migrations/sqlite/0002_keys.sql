-- API keys, how often they were used, and what they did once.

CREATE TABLE api_keys (
    id           BLOB    NOT NULL PRIMARY KEY,
    -- The part of the key that finds the row; the secret part is only known as its SHA-256.
    public_id    TEXT    NOT NULL CONSTRAINT api_keys_public_id UNIQUE,
    secret_hash  BLOB    NOT NULL,
    account_id   BLOB    NOT NULL REFERENCES accounts (id),
    scope_id     BLOB    NOT NULL REFERENCES scopes (id),
    -- API scopes, separated by spaces.
    grants       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT;

CREATE INDEX api_keys_by_account ON api_keys (account_id);

-- Requests in the minute and the day that run now, each from its first request on.
CREATE TABLE rate_windows (
    api_key_id   BLOB    NOT NULL PRIMARY KEY REFERENCES api_keys (id),
    minute_start INTEGER NOT NULL,
    minute_count INTEGER NOT NULL,
    day_start    INTEGER NOT NULL,
    day_count    INTEGER NOT NULL
) STRICT;

-- The answer that an Idempotency-Key stands for, written in the transaction of its effect.
CREATE TABLE idempotency (
    api_key_id  BLOB    NOT NULL REFERENCES api_keys (id),
    key         TEXT    NOT NULL,
    -- HMAC-SHA256 of method, path, query and body.
    fingerprint BLOB    NOT NULL,
    status      INTEGER NOT NULL,
    -- The body, encrypted: it may hold a secret that is shown once.
    answer      BLOB    NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (api_key_id, key)
) STRICT;

CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);
