-- Liveness is kept by the host that has a device's connection. The store has it with a delay.

-- A device without a connection is offline soon after it was seen; one with a connection, when its host has been silent
-- for long.
DROP INDEX device_presence_online;
CREATE INDEX device_presence_left ON device_presence (last_seen_at) WHERE online = TRUE AND host_id IS NULL;
CREATE INDEX device_presence_held ON device_presence (last_seen_at) WHERE online = TRUE AND host_id IS NOT NULL;

-- When each device's agent was last to be told something, and by which process: other processes look here.
CREATE TABLE device_changes (
    device_id  UUID    NOT NULL PRIMARY KEY,
    changed_at BIGINT  NOT NULL,
    changed_by UUID    NOT NULL
);
CREATE INDEX device_changes_by_time ON device_changes (changed_at);

-- For what may run again when a suspension is over.
CREATE INDEX scopes_suspended ON scopes (suspended_until) WHERE suspended_until IS NOT NULL;
