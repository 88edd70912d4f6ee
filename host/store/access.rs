//! Firewall and GeoIP rules.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};
use culvert_domain::access::{Country, CountryRule, FirewallRule, NewFirewallRule, Range};
use culvert_domain::error::Result;

impl Store {
    pub async fn firewall(&self, tunnel_id: Uuid) -> Result<Vec<FirewallRule>> {
        firewall(&mut &self.db, tunnel_id).await
    }

    pub async fn country_rules(&self, tunnel_id: Uuid) -> Result<Vec<CountryRule>> {
        country_rules(&mut &self.db, tunnel_id).await
    }
}

impl Write {
    /// Replaces all firewall rules of a tunnel, and returns the new ones as stored.
    pub async fn replace_firewall(&mut self, tunnel_id: Uuid, rules: &[NewFirewallRule]) -> Result<Vec<FirewallRule>> {
        self.execute(sql!("DELETE FROM firewall_rules WHERE tunnel_id = $1"), args![tunnel_id]).await?;
        for (position, rule) in (0_i64..).zip(rules) {
            let (id, now) = (self.clock.id(), self.now);
            let sql = sql!(
                "INSERT INTO firewall_rules (id, tunnel_id, position, rule_type, ip_address, ip_cidr, description, \
                     created_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
            );
            let (address, network) = match rule.range {
                Range::Address(address) => (Some(address.to_string()), None),
                Range::Network(network) => (None, Some(network.to_string())),
            };
            let args = args![
                id,
                tunnel_id,
                position,
                StringArg(rule.rule_type),
                address.as_deref(),
                network.as_deref(),
                rule.description.as_deref(),
                now,
            ];
            self.execute(sql, args).await?;
        }
        self.rules_changed(tunnel_id).await?;
        firewall(&mut **self, tunnel_id).await
    }

    /// Replaces all GeoIP rules of a tunnel, and returns the new ones as stored.
    pub async fn replace_country_rules(&mut self, tunnel_id: Uuid, rules: &[CountryRule]) -> Result<Vec<CountryRule>> {
        self.execute(sql!("DELETE FROM geoip_rules WHERE tunnel_id = $1"), args![tunnel_id]).await?;
        for (position, CountryRule { country, action }) in (0_i64..).zip(rules) {
            let sql =
                sql!("INSERT INTO geoip_rules (tunnel_id, country_code, position, action) VALUES ($1, $2, $3, $4)");
            self.execute(sql, args![tunnel_id, &country.to_string(), position, StringArg(*action)]).await?;
        }
        self.rules_changed(tunnel_id).await?;
        country_rules(&mut **self, tunnel_id).await
    }

    async fn rules_changed(&mut self, tunnel_id: Uuid) -> Result<()> {
        let now = self.now;
        let sql = sql!("UPDATE tunnels SET rules_version = rules_version + 1, updated_at = $2 WHERE id = $1");
        self.execute(sql, args![tunnel_id, now]).await?;
        self.touch_assignment(tunnel_id).await
    }
}

async fn firewall(db: &mut impl Read, tunnel_id: Uuid) -> Result<Vec<FirewallRule>> {
    let sql = sql!(
        "SELECT id, rule_type, ip_address, ip_cidr, description, created_at FROM firewall_rules \
         WHERE tunnel_id = $1 ORDER BY position"
    );
    let rows = db.all(sql, args![tunnel_id]).await?;
    Ok(rows.iter().map(firewall_rule).collect::<DbResult<_>>()?)
}

async fn country_rules(db: &mut impl Read, tunnel_id: Uuid) -> Result<Vec<CountryRule>> {
    let sql = sql!("SELECT country_code, action FROM geoip_rules WHERE tunnel_id = $1 ORDER BY position");
    let rows = db.all(sql, args![tunnel_id]).await?;
    Ok(rows.iter().map(country_rule).collect::<DbResult<_>>()?)
}

fn firewall_rule(row: &Row) -> DbResult<FirewallRule> {
    let created_at: DateTime<Utc> = row.time("created_at")?;
    let range = match (row.optional_text("ip_address")?, row.optional_text("ip_cidr")?) {
        (Some(address), _) => Range::address(&address),
        (None, network) => Range::network(&network.unwrap_or_default()),
    };
    Ok(row!(row => FirewallRule {
        id: id, rule_type: string_enum, description: optional_text;
        range: range.ok_or_else(|| row.unreadable("ip_cidr"))?,
        created_at,
    }))
}

fn country_rule(row: &Row) -> DbResult<CountryRule> {
    let country = Country::parse(&row.text("country_code")?).ok_or_else(|| row.unreadable("country_code"))?;
    Ok(CountryRule { country, action: row.string_enum("action")? })
}
