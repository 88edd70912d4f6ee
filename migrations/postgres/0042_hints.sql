-- What a host has to tell its agents although another process has changed it: another host, or the operator's command. Rows
-- are appended, and taken by their host.

CREATE TABLE hints (
    host_id   UUID   NOT NULL,
    device_id UUID   NOT NULL
);
CREATE INDEX hints_by_host ON hints (host_id);

DROP TABLE device_changes;
