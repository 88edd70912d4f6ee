-- API keys, how often they were used, and what they did once.

CREATE TABLE api_keys (
    id           UUID    NOT NULL PRIMARY KEY,
    -- The part of the key that finds the row; the secret part is only known as its SHA-256.
    public_id    TEXT    NOT NULL CONSTRAINT api_keys_public_id UNIQUE,
    secret_hash  BYTEA   NOT NULL,
    account_id   UUID    NOT NULL REFERENCES accounts (id),
    scope_id     UUID    NOT NULL REFERENCES scopes (id),
    -- API scopes, separated by spaces.
    grants       TEXT    NOT NULL,
    created_at   BIGINT  NOT NULL,
    expires_at   BIGINT,
    revoked_at   BIGINT,
    last_used_at BIGINT
);

CREATE INDEX api_keys_by_account ON api_keys (account_id);

-- Requests in the minute and the day that run now, each from its first request on.
CREATE TABLE rate_windows (
    api_key_id   UUID    NOT NULL PRIMARY KEY REFERENCES api_keys (id),
    minute_start BIGINT  NOT NULL,
    minute_count BIGINT  NOT NULL,
    day_start    BIGINT  NOT NULL,
    day_count    BIGINT  NOT NULL
);

-- The answer that an Idempotency-Key stands for, written in the transaction of its effect.
CREATE TABLE idempotency (
    api_key_id  UUID    NOT NULL REFERENCES api_keys (id),
    key         TEXT    NOT NULL,
    -- HMAC-SHA256 of method, path, query and body.
    fingerprint BYTEA   NOT NULL,
    status      BIGINT  NOT NULL,
    -- The body, encrypted: it may hold a secret that is shown once.
    answer      BYTEA   NOT NULL,
    expires_at  BIGINT  NOT NULL,
    PRIMARY KEY (api_key_id, key)
);

CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);
