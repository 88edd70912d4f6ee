-- Traffic by hour, beside that by day: of each tunnel, and of each scope as the sum of its tunnels.

CREATE TABLE usage_hours (
    tunnel_id UUID    NOT NULL,
    hour      BIGINT  NOT NULL,
    scope_id  UUID    NOT NULL REFERENCES scopes (id),
    bytes_in  BIGINT  NOT NULL,
    bytes_out BIGINT  NOT NULL,
    PRIMARY KEY (tunnel_id, hour)
);
CREATE INDEX usage_hours_by_hour ON usage_hours (hour);
CREATE TABLE usage_hours_of_scopes (
    scope_id  UUID    NOT NULL REFERENCES scopes (id),
    hour      BIGINT  NOT NULL,
    bytes_in  BIGINT  NOT NULL,
    bytes_out BIGINT  NOT NULL,
    PRIMARY KEY (scope_id, hour)
);
CREATE INDEX usage_hours_of_scopes_by_hour ON usage_hours_of_scopes (hour);

-- From here on, what each engine says in its own way.

ALTER TABLE usage_hours SET (fillfactor = 80);
ALTER TABLE usage_hours_of_scopes SET (fillfactor = 80);
