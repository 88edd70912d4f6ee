-- How visitors are passed on to local services.

-- NULL: verify, unless the service's address is loopback or private.
ALTER TABLE tunnels ADD COLUMN local_tls_verify BOOLEAN;
-- `none`, `v1`, `v2` or `spp`.
ALTER TABLE tunnels ADD COLUMN proxy_protocol TEXT NOT NULL DEFAULT 'none';
ALTER TABLE tunnels ADD COLUMN tls_passthrough BOOLEAN NOT NULL DEFAULT FALSE;

-- What the device agreed to, beside host and port. `local_scheme` of tunnels can be `https` from here on.
ALTER TABLE sessions ADD COLUMN local_scheme TEXT NOT NULL DEFAULT 'auto';
ALTER TABLE sessions ADD COLUMN local_tls_verify BOOLEAN;
UPDATE sessions SET local_scheme = (SELECT t.local_scheme FROM tunnels t WHERE t.id = sessions.tunnel_id)
    WHERE tunnel_id IN (SELECT t.id FROM tunnels t WHERE t.local_scheme <> 'auto');
-- How often the run's target has changed: connections to a former one are not used again.
ALTER TABLE sessions ADD COLUMN target_version BIGINT NOT NULL DEFAULT 0;
