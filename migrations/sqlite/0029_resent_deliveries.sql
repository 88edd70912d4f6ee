-- Whether somebody has asked for an attempt, outside of the schedule.
ALTER TABLE deliveries ADD COLUMN resent INTEGER NOT NULL DEFAULT FALSE;
