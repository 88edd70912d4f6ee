-- A host that is started again withdraws what its former process has answered, and nobody has taken up.

CREATE INDEX node_requests_answered ON node_requests (host_id) WHERE state = 'answered';
