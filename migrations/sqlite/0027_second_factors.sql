-- One-time codes of an authenticator app (RFC 6238) as a second factor, and recovery codes in its place.

CREATE TABLE totp (
    account_id   BLOB    NOT NULL PRIMARY KEY REFERENCES accounts (id),
    -- Sealed for the account.
    secret       BLOB    NOT NULL,
    -- The last step of 30 seconds of which a code was accepted.
    last_step    INTEGER NOT NULL,
    -- Since when it is asked for; not before a code has shown that the app has the secret.
    confirmed_at INTEGER
) STRICT;

CREATE TABLE recovery_codes (
    account_id BLOB NOT NULL REFERENCES accounts (id),
    -- SHA-256. A code that was used is deleted.
    hash       BLOB NOT NULL,
    PRIMARY KEY (account_id, hash)
) STRICT;
