//! EndpointSlices of one Kubernetes service become a list of replicas. Pure.
//!
//! By the conditions of discovery.k8s.io/v1: `ready` endpoints are members; one that is
//! `terminating` and still `serving` finishes what it has; the rest are left out until their
//! readiness probe passes. The id is `namespace/pod:port`, so that it says where to look.

use std::collections::HashMap;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};

use super::super::members::Listed;
use crate::config::{self, KubernetesService, is_name};

/// The slices of one service by name, as a watch tells them.
#[derive(Debug, Default)]
pub(super) struct Slices(HashMap<String, EndpointSlice>);

impl Slices {
    /// Enters a slice that was added or changed.
    pub(super) fn set(&mut self, slice: EndpointSlice) {
        if let Some(name) = slice.metadata.name.clone() {
            self.0.insert(name, slice);
        }
    }

    /// Takes out one that was deleted.
    pub(super) fn remove(&mut self, slice: &EndpointSlice) {
        if let Some(name) = &slice.metadata.name {
            self.0.remove(name);
        }
    }

    /// The replicas, in order.
    pub(super) fn list(&self, service: &KubernetesService) -> Vec<Listed> {
        let mut list: Vec<Listed> = Vec::new();
        // An endpoint may be in two slices for a moment while it moves between them, and a
        // dual-stack service has slices of both families: IPv4 first, and the ready one.
        let mut slices: Vec<_> = self.0.values().collect();
        slices.sort_by_key(|slice| (slice.address_type.clone(), slice.metadata.name.clone()));
        for slice in slices.iter().filter(|slice| slice.address_type != "FQDN") {
            let Some(port) = port(slice.ports.as_deref().unwrap_or_default(), service) else {
                continue;
            };
            for listed in slice.endpoints.iter().filter_map(|e| listed(e, port, service)) {
                let same = |l: &&mut Listed| l.replica.id == listed.replica.id;
                match list.iter_mut().find(same) {
                    None => list.push(listed),
                    Some(there) if there.terminating && !listed.terminating => *there = listed,
                    Some(_) => {}
                }
            }
        }
        list.sort_by(|a, b| a.replica.id.cmp(&b.replica.id));
        list
    }
}

/// The asked port by number or name; without one the only port, or the one called `http`.
fn port(ports: &[EndpointPort], service: &KubernetesService) -> Option<u16> {
    let number = |port: &EndpointPort| port.port.and_then(|n| u16::try_from(n).ok());
    let named = |name: &str| ports.iter().find(|port| port.name.as_deref() == Some(name));
    match &service.port {
        Some(asked) => match asked.parse() {
            Ok(number) => Some(number),
            Err(_) => named(asked).and_then(number),
        },
        None => named("http").or(ports.first()).and_then(number),
    }
}

fn listed(endpoint: &Endpoint, port: u16, service: &KubernetesService) -> Option<Listed> {
    let unsaid = EndpointConditions::default();
    let said = endpoint.conditions.as_ref().unwrap_or(&unsaid);
    // "A nil value should be interpreted as true" of ready, and of serving as ready is.
    let ending = said.terminating.unwrap_or(false);
    let ready = said.ready.unwrap_or(!ending);
    let serving = said.serving.unwrap_or(ready);
    let finishing = serving && ending;
    if !ready && !finishing {
        return None;
    }
    let ip: std::net::IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let url = format!("http://{}", std::net::SocketAddr::new(ip, port));
    let replica = config::Replica::parse(&url).ok()?;
    let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
    let id = pod.map(|pod| format!("{}/{pod}:{port}", service.namespace));
    let id = id.filter(|id| config::is_replica_id(id)).unwrap_or_else(|| replica.id.clone());
    let zone = endpoint.zone.clone().filter(|zone| is_name(zone));
    let replica = config::Replica { id, zone, ..replica };
    Some(Listed { replica, terminating: ending })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(port: Option<&str>) -> KubernetesService {
        KubernetesService {
            namespace: "llm".to_owned(),
            service: "vllm".to_owned(),
            port: port.map(str::to_owned),
            kubeconfig: None,
        }
    }

    fn slice(name: &str, json: &str) -> EndpointSlice {
        let mut slice: EndpointSlice = serde_json::from_str(json).expect("slice");
        slice.metadata.name = Some(name.to_owned());
        slice
    }

    fn endpoint(ip: &str, pod: &str, conditions: &str) -> String {
        format!(
            "{{\"addresses\":[\"{ip}\"],\"conditions\":{conditions},\"zone\":\"b\",\
             \"targetRef\":{{\"kind\":\"Pod\",\"name\":\"{pod}\"}}}}"
        )
    }

    fn of(endpoints: &[String]) -> EndpointSlice {
        let json = format!(
            "{{\"addressType\":\"IPv4\",\"ports\":[{{\"name\":\"metrics\",\"port\":9000}},\
             {{\"name\":\"http\",\"port\":8000}}],\"endpoints\":[{}]}}",
            endpoints.join(",")
        );
        slice("a", &json)
    }

    fn shown(slices: &Slices, port: Option<&str>) -> Vec<(String, String, bool)> {
        let list = slices.list(&service(port));
        let show = |l: Listed| (l.replica.id, l.replica.url, l.terminating);
        list.into_iter().map(show).collect()
    }

    #[test]
    fn conditions_decide_who_is_in() {
        let mut slices = Slices::default();
        slices.set(of(&[
            endpoint("10.0.0.1", "p1", "{\"ready\":true,\"serving\":true,\"terminating\":false}"),
            endpoint("10.0.0.2", "p2", "{\"ready\":false,\"serving\":true,\"terminating\":true}"),
            endpoint("10.0.0.3", "p3", "{\"ready\":false,\"serving\":false,\"terminating\":true}"),
            endpoint("10.0.0.4", "p4", "{\"ready\":false}"),
            endpoint("10.0.0.5", "p5", "{}"),
        ]));
        let of = |pod: u8, ending| {
            (format!("llm/p{pod}:8000"), format!("http://10.0.0.{pod}:8000"), ending)
        };
        assert_eq!(shown(&slices, None), [of(1, false), of(2, true), of(5, false)]);
        assert_eq!(slices.list(&service(None))[0].replica.zone.as_deref(), Some("b"));
    }

    #[test]
    fn the_port_is_asked_for_by_number_or_name() {
        let mut slices = Slices::default();
        slices.set(of(&[endpoint("10.0.0.1", "p1", "{}")]));
        let url = |port| shown(&slices, port).pop().map(|(_, url, _)| url);
        assert_eq!(url(Some("metrics")).as_deref(), Some("http://10.0.0.1:9000"));
        assert_eq!(url(Some("7000")).as_deref(), Some("http://10.0.0.1:7000"));
        assert_eq!(url(Some("nope")), None);
    }

    #[test]
    fn slices_are_merged_and_leave() {
        let mut slices = Slices::default();
        let first = of(&[endpoint("10.0.0.1", "p1", "{\"serving\":true,\"terminating\":true}")]);
        slices.set(first.clone());
        let mut second = of(&[endpoint("10.0.0.1", "p1", "{}"), endpoint("10.0.0.2", "p2", "{}")]);
        second.metadata.name = Some("b".to_owned());
        slices.set(second);
        let mut six = of(&[endpoint("fd00::1", "p1", "{}")]);
        six.metadata.name = Some("c".to_owned());
        six.address_type = "IPv6".to_owned();
        slices.set(six);
        let list = shown(&slices, None);
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].1.as_str(), list[0].2), ("http://10.0.0.1:8000", false));
        slices.remove(&first);
        assert_eq!(shown(&slices, None).len(), 2);
    }
}
