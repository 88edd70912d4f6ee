-- Certificates are counted by status.

CREATE INDEX certificates_by_status ON certificates (status);
