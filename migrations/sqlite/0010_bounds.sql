-- Bounds, what they are counted by, and what was found missing in three reviews.

-- Whether a tunnel may run only on the devices that are listed for it: the list may have become empty
-- because its devices have gone, and then it runs nowhere.
ALTER TABLE tunnels ADD COLUMN restricted INTEGER NOT NULL DEFAULT FALSE;
UPDATE tunnels SET restricted = TRUE WHERE id IN (SELECT tunnel_id FROM tunnel_devices);

-- Who has left a Team took their devices along: these are their own now, and consent to nothing.
DELETE FROM tunnel_devices WHERE device_id IN (
    SELECT d.id FROM devices d WHERE d.scope_id <> d.owner_id AND NOT EXISTS (
        SELECT 1 FROM team_members m WHERE m.team_id = d.scope_id AND m.account_id = d.owner_id));
UPDATE tunnels SET wanted_on = NULL WHERE wanted_on IN (
    SELECT d.id FROM devices d WHERE d.scope_id <> d.owner_id AND NOT EXISTS (
        SELECT 1 FROM team_members m WHERE m.team_id = d.scope_id AND m.account_id = d.owner_id));
UPDATE devices SET scope_id = owner_id, remote_control = FALSE, consent_revision = consent_revision + 1
    WHERE scope_id <> owner_id AND NOT EXISTS (
        SELECT 1 FROM team_members m WHERE m.team_id = devices.scope_id AND m.account_id = devices.owner_id);

-- How many deliveries wait for an endpoint, and how many attempts in a row were not answered in time.
ALTER TABLE webhooks ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE webhooks ADD COLUMN timeouts INTEGER NOT NULL DEFAULT 0;
UPDATE webhooks SET waiting =
    (SELECT COUNT(*) FROM deliveries d WHERE d.webhook_id = webhooks.id AND d.status = 'pending');

-- When an attempt was made.
ALTER TABLE deliveries ADD COLUMN attempted_at INTEGER;
UPDATE deliveries SET attempted_at = finished_at - COALESCE(duration_ms, 0) * 1000
    WHERE status IN ('succeeded', 'failed');

-- What endpoints were last told of a device's presence, and how often in the minute that began then:
-- one that comes and goes all the time is not told of every time.
ALTER TABLE device_presence ADD COLUMN told INTEGER NOT NULL DEFAULT FALSE;
ALTER TABLE device_presence ADD COLUMN told_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE device_presence ADD COLUMN told_times INTEGER NOT NULL DEFAULT 0;
ALTER TABLE device_presence ADD COLUMN offline_reason TEXT;
UPDATE device_presence SET told = online;
CREATE INDEX device_presence_untold ON device_presence (told_since) WHERE told <> online;

-- Public ports that were given up. For a while others get them only where nothing else is free:
-- somebody may still dial them.
CREATE TABLE resting_ports (
    node_id   BLOB    NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    port      INTEGER NOT NULL,
    transport TEXT    NOT NULL CHECK (transport IN ('tcp', 'udp')),
    -- Whose it was.
    scope_id  BLOB    NOT NULL REFERENCES scopes (id),
    until     INTEGER NOT NULL,
    PRIMARY KEY (node_id, port, transport)
) STRICT;

CREATE INDEX resting_ports_by_end ON resting_ports (until);

-- For what is deleted after its time.
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX usage_days_by_day ON usage_days (day);

-- A value sealed with the host's key: a host with another key would lose what is sealed here, so it does
-- not start.
CREATE TABLE key_checks (
    id     INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    sealed BLOB    NOT NULL
) STRICT;
