//! Webhook endpoints, their tests and deliveries.

use culvert_api_types::deleted::DeletedWebhook;
use culvert_api_types::read::{Body, NoBody};
use culvert_api_types::requests::{NewWebhook, WebhookPatch};
use culvert_api_types::webhook::{DeliveryResponse, NewWebhookResponse, TestEventResponse, WebhookResponse};
use culvert_domain::facts::Resource;
use culvert_service::webhooks::{CreateWebhook, DeleteWebhook, NewSecret, TestWebhook, UpdateWebhook};

use super::call::Call;
use super::reply::{Accepted, Created, HandlerResult, List, Single};

pub(crate) async fn list(call: Call, (): ()) -> HandlerResult<List<WebhookResponse>> {
    let webhooks = call.service().webhooks(&call.caller, call.page()?).await?;
    call.listed(webhooks, WebhookResponse::from)
}

pub(crate) async fn create(call: Call, body: Body<NewWebhook>) -> HandlerResult<Created<NewWebhookResponse>> {
    let admitted = call.admit(Resource::Scope, body).await?;
    let NewSecret { webhook_id, secret, sealed } = call.service().new_webhook_secret();
    let change = |definition| CreateWebhook { id: webhook_id, definition, secret: sealed.clone() };
    call.commit(admitted, change, move |webhook| Created(NewWebhookResponse::new(webhook, secret.clone()))).await
}

pub(crate) async fn read(call: Call, (): ()) -> HandlerResult<Single<WebhookResponse>> {
    let webhook = call.service().webhook(&call.caller, call.id()?).await?;
    call.reply(Single(webhook.into()))
}

pub(crate) async fn update(call: Call, body: Body<WebhookPatch>) -> HandlerResult<Single<WebhookResponse>> {
    let webhook_id = call.id()?;
    let admitted = call.admit(Resource::Webhook(webhook_id), body).await?;
    call.commit(admitted, |change| UpdateWebhook { webhook_id, change }, |webhook| Single(webhook.into())).await
}

pub(crate) async fn delete(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedWebhook>> {
    let webhook_id = call.id()?;
    let admitted = call.admit(Resource::Webhook(webhook_id), body).await?;
    call.commit(admitted, |()| DeleteWebhook { webhook_id }, |id| Single(DeletedWebhook::new(id))).await
}

pub(crate) async fn test(call: Call, body: Body<NoBody>) -> HandlerResult<Accepted<TestEventResponse>> {
    let webhook_id = call.id()?;
    let admitted = call.admit(Resource::Webhook(webhook_id), body).await?;
    let answer = move |event_id| Accepted(TestEventResponse::new(event_id, webhook_id));
    call.commit(admitted, |()| TestWebhook { webhook_id }, answer).await
}

pub(crate) async fn deliveries(call: Call, (): ()) -> HandlerResult<List<DeliveryResponse>> {
    let webhook = call.service().webhook(&call.caller, call.id()?).await?;
    let attempts = call.service().attempts_of(&webhook, call.page()?).await?;
    call.listed(attempts, DeliveryResponse::from)
}
