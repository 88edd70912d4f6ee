-- Traffic by minute of each tunnel, kept for little more than an hour.

CREATE TABLE usage_minutes (
    tunnel_id BLOB NOT NULL,
    minute INTEGER NOT NULL,
    scope_id BLOB NOT NULL REFERENCES scopes (id),
    bytes_in INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL,
    PRIMARY KEY (tunnel_id, minute)
) STRICT;
CREATE INDEX usage_minutes_by_minute ON usage_minutes (minute);
