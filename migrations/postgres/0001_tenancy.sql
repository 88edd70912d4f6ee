-- Who there is. Everything that a client sees belongs to one scope: one account's own or a Team's.
--
-- In every table: ids are UUIDs, times are microseconds since 1970 (UTC), and the
-- SQLite twin in ../sqlite has the same tables, columns and nullability.

CREATE TABLE scopes (
    id              UUID    NOT NULL PRIMARY KEY,
    kind            TEXT    NOT NULL CHECK (kind IN ('personal', 'team')),
    name            TEXT    NOT NULL,
    plan            TEXT    NOT NULL,
    -- Until then the month's bandwidth is used up.
    suspended_until BIGINT,
    created_at      BIGINT  NOT NULL
);

-- An account and its personal scope share the id.
CREATE TABLE accounts (
    id         UUID    NOT NULL PRIMARY KEY REFERENCES scopes (id),
    email      TEXT    NOT NULL CONSTRAINT accounts_email UNIQUE,
    created_at BIGINT  NOT NULL
);

CREATE TABLE team_members (
    team_id    UUID    NOT NULL REFERENCES scopes (id),
    account_id UUID    NOT NULL REFERENCES accounts (id),
    role       TEXT    NOT NULL CHECK (role IN ('owner', 'admin', 'member')),
    created_at BIGINT  NOT NULL,
    PRIMARY KEY (team_id, account_id)
);

CREATE INDEX team_members_by_account ON team_members (account_id);
