//! Devices, and their consent to remote control.

use uuid::Uuid;

use super::arg::args;
use super::error::{DbResult, StoreError};
use super::keys::DeviceCode;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Hint, Store, Write, scopes};
use culvert_domain::caller::{Caller, Credential, Role, ScopeKind};
use culvert_domain::device::{Description, Device, EnrolledDevice, NewDevice};
use culvert_domain::error::{Error, Result};
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::permission::{Permission, Permissions};
use culvert_domain::tunnel::Tunnel;
use culvert_domain::tunnel_devices::{AUTHORIZED_SHOWN, TunnelDevices};

/// Selects devices, and a number beside each.
macro_rules! select_device {
    ($rest:literal) => {
        select_device!("0", $rest)
    };
    ($total:literal, $rest:literal) => {
        sql!(concat!(
            "SELECT ", $total, " AS total, d.id, d.scope_id, d.owner_id, d.name, d.platform, d.version, d.capabilities, d.remote_control, \
                    d.consent_revision, d.allowed_targets, d.may_create, d.created_at, d.public_key, p.last_seen_at, \
                    COALESCE(p.online, FALSE) AS online, \
                    ((d.owner_id = d.scope_id OR EXISTS (SELECT 1 FROM team_members m \
                        WHERE m.team_id = d.scope_id AND m.account_id = d.owner_id)) \
                     AND NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = d.owner_id AND a.locked_at IS NOT NULL)) \
                        AS owner_active \
             FROM devices d LEFT JOIN device_presence p ON p.device_id = d.id ",
            $rest
        ))
    };
}

impl Store {
    /// Devices of locked accounts that are online or run something, each with its scope; at most so many.
    pub async fn devices_of_locked_accounts(&self, most: u32) -> Result<Vec<(Uuid, Uuid)>> {
        let sql = sql!(
            "SELECT d.scope_id, d.id FROM accounts a JOIN devices d ON d.owner_id = a.id \
             LEFT JOIN device_presence p ON p.device_id = d.id \
             WHERE a.locked_at IS NOT NULL AND (p.online = TRUE \
                 OR EXISTS (SELECT 1 FROM sessions s WHERE s.device_id = d.id AND s.ended_at IS NULL)) LIMIT $1"
        );
        let rows = (&self.db).all(sql, args![most]).await?;
        Ok(rows.iter().map(|row| Ok((row.id("scope_id")?, row.id("id")?))).collect::<DbResult<_>>()?)
    }

    pub async fn device(&self, scope_id: Uuid, id: Uuid) -> Result<Option<Device>> {
        find(&mut &self.db, scope_id, id).await
    }

    pub async fn devices(&self, scope_id: Uuid, page: Page) -> Result<PageRows<Device>> {
        let sql = select_device!(
            "WHERE d.scope_id = $1 AND (d.created_at, d.id) < ($2, $3) ORDER BY d.created_at DESC, d.id DESC LIMIT $4"
        );
        let args = args![scope_id, page.after.micros(), page.after.id, page.limit_plus_one()];
        let rows = (&self.db).all(sql, args).await?;
        let devices = rows.iter().map(device).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(devices, |device| CursorPosition { at: device.created_at, id: device.id }))
    }

    /// The device that runs a tunnel, and those that may.
    pub async fn devices_of_tunnel(&self, tunnel: &Tunnel) -> Result<TunnelDevices> {
        let (scope_id, current) = (tunnel.scope_id, tunnel.running_on());
        let rows = if tunnel.restricted {
            let sql = select_device!(
                "(SELECT COUNT(*) FROM tunnel_devices WHERE tunnel_id = $4)",
                "WHERE d.scope_id = $1 AND d.id IN (SELECT id FROM ( \
                     SELECT o.id FROM tunnel_devices b JOIN devices o ON o.id = b.device_id WHERE b.tunnel_id = $4 \
                     ORDER BY o.created_at DESC, o.id DESC LIMIT $3) AS newest UNION SELECT $2) \
                 ORDER BY d.created_at DESC, d.id DESC"
            );
            (&self.db).all(sql, args![scope_id, current, AUTHORIZED_SHOWN, tunnel.id]).await?
        } else {
            let sql = select_device!(
                "(SELECT COUNT(*) FROM devices WHERE scope_id = $1)",
                "WHERE d.scope_id = $1 AND d.id IN (SELECT id FROM ( \
                     SELECT id FROM devices WHERE scope_id = $1 \
                     ORDER BY created_at DESC, id DESC LIMIT $3) AS newest UNION SELECT $2) \
                 ORDER BY d.created_at DESC, d.id DESC"
            );
            (&self.db).all(sql, args![scope_id, current, AUTHORIZED_SHOWN]).await?
        };
        let devices = rows.iter().map(device).collect::<DbResult<Vec<_>>>()?;
        let authorized_total = rows.first().map_or(Ok(0), |row| row.number("total"))?;
        Ok(TunnelDevices::new(tunnel, devices, authorized_total))
    }

    /// Finds a device in any scope: for the operator, and for a device that is about to authenticate.
    pub async fn enrolled_device(&self, id: Uuid) -> Result<Option<EnrolledDevice>> {
        let row = (&self.db).optional(select_device!("WHERE d.id = $1"), args![id]).await?;
        let enrolled = |row: &Row| {
            Ok::<_, StoreError>(EnrolledDevice { device: device(row)?, public_key: row.bytes("public_key")? })
        };
        Ok(row.as_ref().map(enrolled).transpose()?)
    }

    /// The owner of a device, as the caller of what commands at the device ask for. `None` if the device is gone, or its
    /// owner has left the Team.
    pub(super) async fn caller_of_device(&self, id: Uuid) -> Result<Option<Caller>> {
        let sql = sql!(
            "SELECT d.owner_id, s.id, s.kind, s.name, s.plan, m.role FROM devices d \
             JOIN scopes s ON s.id = d.scope_id \
             JOIN accounts a ON a.id = d.owner_id AND a.locked_at IS NULL \
             LEFT JOIN team_members m ON m.team_id = d.scope_id AND m.account_id = d.owner_id \
             WHERE d.id = $1"
        );
        let Some(row) = (&self.db).optional(sql, args![id]).await? else { return Ok(None) };
        let (scope, role) = (scopes::scope(&row)?, row.optional_string_enum::<Role>("role")?);
        if scope.kind == ScopeKind::Team && role.is_none() {
            return Ok(None);
        }
        let (credential, permissions) = (Credential::Device(id), Permissions::of(&[Permission::TunnelsWrite]));
        Ok(Some(Caller { credential, account_id: row.id("owner_id")?, scope, role, permissions }))
    }

    /// All devices of all scopes, for the operator.
    pub async fn all_devices(&self) -> Result<Vec<Device>> {
        let rows = (&self.db).all(select_device!("ORDER BY d.created_at, d.id"), args![]).await?;
        Ok(rows.iter().map(device).collect::<DbResult<_>>()?)
    }
}

pub(super) async fn find(db: &mut impl Read, scope_id: Uuid, id: Uuid) -> Result<Option<Device>> {
    let row = db.optional(select_device!("WHERE d.scope_id = $1 AND d.id = $2"), args![scope_id, id]).await?;
    Ok(row.as_ref().map(device).transpose()?)
}

impl Write {
    pub async fn device(&mut self, scope_id: Uuid, id: Uuid) -> Result<Option<Device>> {
        find(&mut **self, scope_id, id).await
    }

    /// Finds a device in any scope.
    pub async fn device_in_any_scope(&mut self, id: Uuid) -> Result<Option<Device>> {
        let row = self.optional(select_device!("WHERE d.id = $1"), args![id]).await?;
        Ok(row.as_ref().map(device).transpose()?)
    }

    /// The ids of the devices that an account has enrolled in a scope.
    pub async fn devices_of_owner(&mut self, scope_id: Uuid, owner_id: Uuid) -> Result<Vec<Uuid>> {
        let sql = sql!("SELECT id FROM devices WHERE scope_id = $1 AND owner_id = $2");
        let rows = self.all(sql, args![scope_id, owner_id]).await?;
        Ok(rows.iter().map(|row| row.id("id")).collect::<DbResult<_>>()?)
    }

    pub async fn create_device(&mut self, code: DeviceCode, new: &NewDevice) -> Result<Uuid> {
        let DeviceCode { account_id: owner_id, scope_id, may_create } = code;
        let Description { platform, version, capabilities } = &new.description;
        self.notify(Hint::Scope(scope_id));
        let (id, now, capabilities) = (self.clock.id(), self.now, capabilities.join(" "));
        let sql = sql!(
            "INSERT INTO devices (id, scope_id, owner_id, name, platform, version, capabilities, public_key, \
                 remote_control, consent_revision, may_create, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, FALSE, 0, $9, $10)"
        );
        let name = new.name.as_deref();
        let key = &new.public_key[..];
        let args = args![id, scope_id, owner_id, name, platform, version, &capabilities, key, may_create, now];
        self.execute(sql, args).await?;
        Ok(id)
    }

    /// Records what the agent reports about itself when it connects.
    pub async fn describe_device(&mut self, id: Uuid, description: &Description) -> Result<()> {
        let sql = sql!("UPDATE devices SET platform = $2, version = $3, capabilities = $4 WHERE id = $1");
        let Description { platform, version, capabilities } = description;
        let capabilities = capabilities.join(" ");
        self.execute(sql, args![id, platform, version, &capabilities]).await?;
        Ok(())
    }

    pub async fn rename_device(&mut self, id: Uuid, name: &str) -> Result<()> {
        self.execute(sql!("UPDATE devices SET name = $2 WHERE id = $1"), args![id, name]).await?;
        Ok(())
    }

    /// Sets whether commands at the device may create tunnels.
    pub async fn set_may_create(&mut self, id: Uuid, may_create: bool) -> Result<()> {
        self.notify(Hint::Device(id));
        self.execute(sql!("UPDATE devices SET may_create = $2 WHERE id = $1"), args![id, may_create]).await?;
        Ok(())
    }

    /// Turns remote control on. Only the device itself may request this, with its signature.
    pub async fn turn_remote_control_on(&mut self, id: Uuid) -> Result<()> {
        self.notify(Hint::Device(id));
        self.execute(sql!("UPDATE devices SET remote_control = TRUE WHERE id = $1"), args![id]).await?;
        Ok(())
    }

    /// Sets the local targets that the device's owner allows to remote control. The device has signed them.
    pub async fn set_allowed_targets(&mut self, id: Uuid, targets: Option<&[String]>) -> Result<()> {
        self.notify(Hint::Device(id));
        let targets = targets.map(serde_json::to_string).transpose().map_err(Error::internal)?;
        self.execute(sql!("UPDATE devices SET allowed_targets = $2 WHERE id = $1"), args![id, targets.as_deref()])
            .await?;
        Ok(())
    }

    /// The names of the tunnels whose allowlist contains only this device.
    pub async fn tunnels_bound_only_to(&mut self, id: Uuid) -> Result<Vec<String>> {
        let sql = sql!(
            "SELECT t.name FROM tunnels t JOIN tunnel_devices b ON b.tunnel_id = t.id AND b.device_id = $1 \
             WHERE NOT EXISTS (SELECT 1 FROM tunnel_devices o WHERE o.tunnel_id = t.id AND o.device_id <> $1) \
             ORDER BY t.name"
        );
        let rows = self.all(sql, args![id]).await?;
        Ok(rows.iter().map(|row| row.text("name")).collect::<DbResult<_>>()?)
    }

    /// Turns remote control off. Every earlier consent becomes void.
    pub async fn revoke_consent(&mut self, id: Uuid) -> Result<()> {
        self.notify(Hint::Device(id));
        let sql =
            sql!("UPDATE devices SET remote_control = FALSE, consent_revision = consent_revision + 1 WHERE id = $1");
        self.execute(sql, args![id]).await?;
        Ok(())
    }

    /// Moves a device to another scope. Its consent becomes void. Allowlists that contained it stay in force, even
    /// if they are empty now.
    pub async fn move_device(&mut self, id: Uuid, scope_id: Uuid) -> Result<()> {
        self.notify(Hint::Device(id));
        self.execute(sql!("DELETE FROM tunnel_devices WHERE device_id = $1"), args![id]).await?;
        let sql = sql!(
            "UPDATE devices SET scope_id = $2, remote_control = FALSE, consent_revision = consent_revision + 1 \
             WHERE id = $1"
        );
        self.execute(sql, args![id, scope_id]).await?;
        Ok(())
    }

    pub async fn delete_device(&mut self, id: Uuid) -> Result<()> {
        self.notify(Hint::Device(id));
        self.execute(sql!("DELETE FROM devices WHERE id = $1"), args![id]).await?;
        Ok(())
    }

    /// Clears the desired device of all tunnels that this device is to run.
    pub async fn clear_desired_device(&mut self, id: Uuid) -> Result<()> {
        let sql = sql!("UPDATE tunnels SET desired_device_id = NULL WHERE desired_device_id = $1");
        self.execute(sql, args![id]).await?;
        Ok(())
    }
}

pub(super) fn device(row: &Row) -> DbResult<Device> {
    let targets = row.json::<Vec<String>>("allowed_targets")?;
    Ok(row!(row => Device {
        id: id, scope_id: id, owner_id: id, owner_active: flag, name: optional_text, platform: optional_text,
        version: optional_text, online: flag, remote_control: flag, consent_revision: int,
        may_create: flag,
        last_seen_at: optional_time, created_at: time;
        capabilities: row.text("capabilities")?.split_whitespace().map(String::from).collect(),
        // A newer agent may store entries that this host cannot parse; they are skipped.
        allowed_targets: targets.map(|targets| targets.iter().filter_map(|text| text.parse().ok()).collect()),
    }))
}
