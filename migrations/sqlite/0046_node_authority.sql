-- How long the nodes of a host serve after its last heartbeat, in microseconds; 0 once it has stopped in order, or was given up.
-- And the machine and folder of the host's lock, where the machine has an id.

ALTER TABLE hosts ADD COLUMN authority INTEGER NOT NULL DEFAULT 600000000;
ALTER TABLE hosts ADD COLUMN machine_identity BLOB;
UPDATE hosts SET authority = 0 WHERE ended_at <= lease_until;

-- Where agents reach a node: what a grant of its leases says, as JSON.

ALTER TABLE nodes ADD COLUMN agent_address TEXT;

-- The node that a tunnel was moved from, until that node has confirmed that it does not serve the tunnel any longer; and the
-- device that it may serve it for.

ALTER TABLE tunnels ADD COLUMN moving_from BLOB;
ALTER TABLE tunnels ADD COLUMN moving_device BLOB;
CREATE INDEX tunnels_moving_from ON tunnels (moving_from) WHERE moving_from IS NOT NULL;
