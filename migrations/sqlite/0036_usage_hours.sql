-- Traffic by hour, beside that by day: of each tunnel, and of each scope as the sum of its tunnels.

CREATE TABLE usage_hours (
    tunnel_id BLOB    NOT NULL,
    hour      INTEGER NOT NULL,
    scope_id  BLOB    NOT NULL REFERENCES scopes (id),
    bytes_in  INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL,
    PRIMARY KEY (tunnel_id, hour)
) STRICT;
CREATE INDEX usage_hours_by_hour ON usage_hours (hour);
CREATE TABLE usage_hours_of_scopes (
    scope_id  BLOB    NOT NULL REFERENCES scopes (id),
    hour      INTEGER NOT NULL,
    bytes_in  INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL,
    PRIMARY KEY (scope_id, hour)
) STRICT;
CREATE INDEX usage_hours_of_scopes_by_hour ON usage_hours_of_scopes (hour);
