-- Whether somebody has shown that the address of an account is theirs, or an operator has said so. An account that a person
-- has made by an invitation has the address that its inviter typed. Of accounts with a way to sign in it is not known.

ALTER TABLE accounts ADD COLUMN email_proved BOOLEAN NOT NULL DEFAULT TRUE;
UPDATE accounts SET email_proved = FALSE
    WHERE id IN (SELECT account_id FROM passwords UNION SELECT account_id FROM passkeys);
