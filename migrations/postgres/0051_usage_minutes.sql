-- Traffic by minute of each tunnel, kept for little more than an hour.

CREATE TABLE usage_minutes (
    tunnel_id UUID NOT NULL,
    minute BIGINT NOT NULL,
    scope_id UUID NOT NULL REFERENCES scopes (id),
    bytes_in BIGINT NOT NULL,
    bytes_out BIGINT NOT NULL,
    PRIMARY KEY (tunnel_id, minute)
);
CREATE INDEX usage_minutes_by_minute ON usage_minutes (minute);

-- From here on, what each engine says in its own way.

ALTER TABLE usage_minutes SET (fillfactor = 80);
