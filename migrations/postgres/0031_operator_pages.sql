-- What the operator's pages list: Teams, and certificates that could not be had.

CREATE INDEX teams ON scopes (id) WHERE kind = 'team' AND deleted_at IS NULL;
CREATE INDEX certificates_failing ON certificates (id) WHERE error IS NOT NULL;
