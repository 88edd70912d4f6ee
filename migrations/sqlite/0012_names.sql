-- Names of http tunnels.

-- Subdomains that were given up. For a while they are kept for the scope that had them: somebody may still open them.
CREATE TABLE resting_subdomains (
    domain_id BLOB    NOT NULL REFERENCES platform_domains (id) ON DELETE CASCADE,
    subdomain TEXT    NOT NULL,
    -- Whose it was.
    scope_id  BLOB    NOT NULL REFERENCES scopes (id),
    until     INTEGER NOT NULL,
    PRIMARY KEY (domain_id, subdomain)
) STRICT;

CREATE INDEX resting_subdomains_by_scope ON resting_subdomains (scope_id, until);
CREATE INDEX resting_subdomains_by_end ON resting_subdomains (until);
