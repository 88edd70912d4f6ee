//! What commands at a device ask for on behalf of the device's owner: the same gate as the API's.

use std::net::IpAddr;

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::{Body, NoBody, read};
use culvert_api_types::requests::NewTunnel;
use culvert_domain::action::Action;
use culvert_domain::caller::Credential;
use culvert_domain::error::{Chain, Error, Result};
use culvert_domain::facts::Resource;
use culvert_wire::control::{Failure, FieldFault};
use culvert_wire::failure_code::FailureCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{ConnectedDevice, DeviceError};
use crate::call::Answered;
use crate::gate::{PinnedPolicies, RequestContext};
use crate::idempotency::{IdempotencyKey, StoredResponse};
use crate::temporary_tunnels::{CreateFromDevice, DeleteFromDevice, Keep};
use crate::tunnels::CreateTunnel;

/// A tunnel that a command at the device wants.
#[derive(Debug)]
pub struct WantedTunnel {
    /// The same for every attempt of one command.
    pub request_id: Uuid,
    /// The body of `POST /v2/tunnels`.
    pub body: Value,
    pub keep: Keep,
}

/// What is stored of a creation, for its repetition.
#[derive(Serialize, Deserialize)]
struct Created {
    tunnel_id: Uuid,
}

impl ConnectedDevice {
    /// A command at the device creates a tunnel. Repeated, it gets the same one. Returns the tunnel's id.
    ///
    /// # Errors
    ///
    /// If the device may not be connected any longer; if the database fails. The inner result says why no tunnel is
    /// created.
    pub async fn create_tunnel(
        &self,
        wanted: WantedTunnel,
        client: IpAddr,
    ) -> Result<Result<Uuid, Failure>, DeviceError> {
        if !self.current().await?.may_create {
            let detail = format!(
                "Commands at this device may not create tunnels; the operator lets them: `culvert device allow-create {}`.",
                self.id()
            );
            return Ok(Err(Failure::new(FailureCode::CreationNotAllowed, detail)));
        }
        Ok(self.try_create(wanted, client).await.map_err(refusal))
    }

    async fn try_create(&self, wanted: WantedTunnel, client: IpAddr) -> Result<Uuid> {
        let WantedTunnel { request_id, body, keep } = wanted;
        let tree = JsonTree::parse(&serde_json::to_vec(&body).map_err(Error::internal)?)?;
        let (action, word) = (Action::TunnelsCreate, if keep == Keep::ForGood { "keep" } else { "temporary" });
        let request = format!("{}\n{word}\n{}", action.name(), tree.canonical()).into_bytes();
        let key = IdempotencyKey { credential_id: self.id(), key: request_id.to_string(), request };
        let policies = self.policies(request_id, client);
        let run = self.create(&policies, &key, read(Some(&tree)), keep);
        let (Answered::Fresh(response) | Answered::Replayed(response)) =
            self.service.carry_out(Some(&key), run).await?;
        let created: Created = serde_json::from_slice(&response.body).map_err(Error::internal)?;
        Ok(created.tunnel_id)
    }

    async fn create(
        &self,
        policies: &PinnedPolicies,
        key: &IdempotencyKey,
        body: Body<NewTunnel>,
        keep: Keep,
    ) -> Result<Answered> {
        let (service, device_id) = (&self.service, self.id());
        let caller = service.store.caller_of(Credential::Device(device_id), self.scope_id).await?;
        let admitted = service.admit(policies, &caller, Action::TunnelsCreate, Resource::Scope, body).await?;
        let password_hash = service.hash_password(admitted.valid.basic_auth_password.clone()).await?;
        let change = |definition| {
            let create = CreateTunnel { definition, password_hash: password_hash.clone() };
            CreateFromDevice { create, device_id, keep }
        };
        let render = |tunnel: culvert_domain::tunnel::Tunnel| response(201, &Created { tunnel_id: tunnel.id });
        service.commit(policies, admitted, Some(key), change, render).await
    }

    /// A command at the device has ended: its temporary tunnel is deleted. One that is gone already is no error.
    ///
    /// # Errors
    ///
    /// If the device may not be connected any longer; if the database fails. The inner result says why the tunnel is
    /// not deleted.
    pub async fn delete_tunnel(
        &self,
        request_id: Uuid,
        tunnel_id: Uuid,
        client: IpAddr,
    ) -> Result<Result<(), Failure>, DeviceError> {
        self.current().await?;
        if !self.service.store.is_temporary_tunnel(tunnel_id, self.id()).await? {
            return Ok(Ok(()));
        }
        Ok(self.try_delete(request_id, tunnel_id, client).await.map_err(refusal))
    }

    async fn try_delete(&self, request_id: Uuid, tunnel_id: Uuid, client: IpAddr) -> Result<()> {
        let (service, policies) = (&self.service, self.policies(request_id, client));
        let caller = service.store.caller_of(Credential::Device(self.id()), self.scope_id).await?;
        let body = read::<NoBody>(None);
        let admitted =
            service.admit(&policies, &caller, Action::TunnelsDelete, Resource::Tunnel(tunnel_id), body).await?;
        let render = |tunnel_id| response(200, &Created { tunnel_id });
        let device_id = self.id();
        service
            .commit(&policies, admitted, None, |()| DeleteFromDevice { tunnel_id, device_id }, render)
            .await
            .map(drop)
    }

    fn policies(&self, request_id: Uuid, client: IpAddr) -> PinnedPolicies {
        let now = self.service.clock().now();
        self.service.pin_policies(|_| RequestContext {
            request_id: Some(request_id),
            now,
            method: None,
            client: Some(client),
        })
    }
}

fn response(status: u16, created: &Created) -> Result<StoredResponse> {
    let body = serde_json::to_vec(created).map_err(Error::internal)?;
    Ok(StoredResponse { status, body })
}

/// What the command prints.
pub(super) fn refusal(error: Error) -> Failure {
    if error.source.is_some() {
        tracing::error!(error = %Chain(&error), "what a command at a device asked for failed");
    }
    let fault = |fault: culvert_domain::error::Fault| FieldFault {
        field: fault.field,
        message: fault.message,
        rule: fault.rule,
    };
    Failure {
        rule: error.rule().map(str::to_owned),
        faults: error.faults.into_iter().map(fault).collect(),
        ..Failure::new(error.code.as_str().to_owned().into(), error.detail)
    }
}
