-- Whether somebody has asked for an attempt, outside of the schedule.
ALTER TABLE deliveries ADD COLUMN resent BOOLEAN NOT NULL DEFAULT FALSE;
CREATE INDEX deliveries_not_taken ON deliveries (webhook_id, created_at) WHERE status IN ('failed', 'canceled');
CREATE INDEX deliveries_resent ON deliveries (webhook_id) WHERE resent = TRUE AND status = 'pending';
