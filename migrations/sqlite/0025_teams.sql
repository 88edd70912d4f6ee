-- Teams that people make and share, and accounts that operate the installation.

-- Since when the account is an operator.
ALTER TABLE accounts ADD COLUMN operator_since INTEGER;
CREATE INDEX accounts_operators ON accounts (id) WHERE operator_since IS NOT NULL;

-- When the Team was deleted. Its row stays for what refers to it.
ALTER TABLE scopes ADD COLUMN deleted_at INTEGER;

CREATE TABLE invitations (
    id         BLOB    NOT NULL PRIMARY KEY,
    -- SHA-256 of the link's secret.
    hash       BLOB    NOT NULL CONSTRAINT invitations_hash UNIQUE,
    team_id    BLOB    NOT NULL REFERENCES scopes (id),
    email      TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('owner', 'admin', 'member')),
    invited_by BLOB    NOT NULL REFERENCES accounts (id),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    CONSTRAINT invitations_email UNIQUE (team_id, email)
) STRICT;
CREATE INDEX invitations_by_expiry ON invitations (expires_at);

-- The link by which the first operator comes in, while nobody can sign in.
CREATE TABLE setup_links (
    -- SHA-256 of the secret.
    hash       BLOB    NOT NULL PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT;
