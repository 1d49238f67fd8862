//! `discover = { kubernetes = "namespace/service" }`: the service's EndpointSlices, listed once and
//! then watched.
//!
//! The client is `kube`'s, on this thread's runtime: in a pod by its service account, elsewhere by
//! a kubeconfig. It needs `list` and `watch` on `endpointslices` of the namespace. A watch that
//! ends goes on from where it was; one whose version is too old lists again.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use futures_core::Stream;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::Outlet;
use super::slices::Slices;
use crate::config::KubernetesService;

/// The server ends a watch after so many seconds, so that a connection that died unnoticed is
/// missed no longer.
const WATCH_S: u32 = 60;
/// One list, and what a watch may take beyond its time.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Follows the service until the task is dropped.
pub(super) async fn follow(service: KubernetesService, mut outlet: Outlet) {
    loop {
        let what = match open(&service).await {
            Ok(api) => watch(&api, &service, &mut outlet).await,
            Err(what) => what,
        };
        let KubernetesService { namespace, service, .. } = &service;
        let wait = outlet.fail(format!("kubernetes {namespace}/{service}: {what}"));
        tokio::time::sleep(wait).await;
    }
}

async fn open(service: &KubernetesService) -> Result<Api<EndpointSlice>, String> {
    let config = match &service.kubeconfig {
        None => Config::infer().await.map_err(|e| e.to_string())?,
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|e| e.to_string())?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map_err(|e| e.to_string())?
        }
    };
    let client = Client::try_from(config).map_err(|e| e.to_string())?;
    Ok(Api::namespaced(client, &service.namespace))
}

/// Lists, then watches until something fails; what it was.
async fn watch(
    api: &Api<EndpointSlice>,
    service: &KubernetesService,
    outlet: &mut Outlet,
) -> String {
    let selector = format!("kubernetes.io/service-name={}", service.service);
    let mut slices = Slices::default();
    let params = ListParams::default().labels(&selector);
    let list = match tokio::time::timeout(ASK_TIMEOUT, api.list(&params)).await {
        Ok(Ok(list)) => list,
        Ok(Err(error)) => return error.to_string(),
        Err(_) => return "no answer in time".to_owned(),
    };
    let mut version = list.metadata.resource_version.clone().unwrap_or_default();
    list.items.into_iter().for_each(|slice| slices.set(slice));
    outlet.list(slices.list(service)).await;
    let params = WatchParams::default().labels(&selector).timeout(WATCH_S);
    loop {
        if let Err(what) = changes(api, &params, (&mut version, &mut slices), service, outlet).await
        {
            return what;
        }
    }
}

/// One watch to its end.
async fn changes(
    api: &Api<EndpointSlice>,
    params: &WatchParams,
    (version, slices): (&mut String, &mut Slices),
    service: &KubernetesService,
    outlet: &mut Outlet,
) -> Result<(), String> {
    let opened = tokio::time::timeout(ASK_TIMEOUT, api.watch(params, version)).await;
    let events = opened.map_err(|_| "no answer in time".to_owned())?;
    let mut events = pin!(events.map_err(|e| e.to_string())?);
    let limit = Duration::from_secs(u64::from(WATCH_S)) + ASK_TIMEOUT;
    let ends = tokio::time::Instant::now() + limit;
    let mut any = false;
    loop {
        let next = poll_fn(|cx| events.as_mut().poll_next(cx));
        let event = match tokio::time::timeout_at(ends, next).await {
            Err(_) => return Err("a watch did not end in time".to_owned()),
            Ok(Some(event)) => event.map_err(|e| e.to_string())?,
            // One that ends at once, again and again, must not be asked in a spin.
            Ok(None) if any => return Ok(()),
            Ok(None) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                return Ok(());
            }
        };
        any = true;
        match event {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => {
                advance(version, &slice);
                slices.set(slice);
            }
            WatchEvent::Deleted(slice) => {
                advance(version, &slice);
                slices.remove(&slice);
            }
            WatchEvent::Bookmark(bookmark) => {
                version.clone_from(&bookmark.metadata.resource_version);
            }
            WatchEvent::Error(status) => return Err(status.to_string()),
        }
        outlet.list(slices.list(service)).await;
    }
}

/// The next watch goes on after this slice.
fn advance(version: &mut String, slice: &EndpointSlice) {
    if let Some(told) = &slice.metadata.resource_version {
        version.clone_from(told);
    }
}
