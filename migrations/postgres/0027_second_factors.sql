-- One-time codes of an authenticator app (RFC 6238) as a second factor, and recovery codes in its place.

CREATE TABLE totp (
    account_id   UUID    NOT NULL PRIMARY KEY REFERENCES accounts (id),
    -- Sealed for the account.
    secret       BYTEA   NOT NULL,
    -- The last step of 30 seconds of which a code was accepted.
    last_step    BIGINT  NOT NULL,
    -- Since when it is asked for; not before a code has shown that the app has the secret.
    confirmed_at BIGINT
);

CREATE TABLE recovery_codes (
    account_id UUID NOT NULL REFERENCES accounts (id),
    -- SHA-256. A code that was used is deleted.
    hash       BYTEA NOT NULL,
    PRIMARY KEY (account_id, hash)
);
