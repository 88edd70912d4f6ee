-- Who there is. Everything that a client sees belongs to one scope: one account's own or a Team's.
--
-- In every table: ids are UUIDs (16 bytes), times are microseconds since 1970 (UTC), and the
-- PostgreSQL twin in ../postgres has the same tables, columns and nullability.

CREATE TABLE scopes (
    id              BLOB    NOT NULL PRIMARY KEY,
    kind            TEXT    NOT NULL CHECK (kind IN ('personal', 'team')),
    name            TEXT    NOT NULL,
    plan            TEXT    NOT NULL,
    -- Until then the month's bandwidth is used up.
    suspended_until INTEGER,
    created_at      INTEGER NOT NULL
) STRICT;

-- An account and its personal scope share the id.
CREATE TABLE accounts (
    id         BLOB    NOT NULL PRIMARY KEY REFERENCES scopes (id),
    email      TEXT    NOT NULL CONSTRAINT accounts_email UNIQUE,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE team_members (
    team_id    BLOB    NOT NULL REFERENCES scopes (id),
    account_id BLOB    NOT NULL REFERENCES accounts (id),
    role       TEXT    NOT NULL CHECK (role IN ('owner', 'admin', 'member')),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, account_id)
) STRICT;

CREATE INDEX team_members_by_account ON team_members (account_id);
