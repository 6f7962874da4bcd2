//! Tests of interface and namespace queries, in network namespaces that the tests create.

extern crate streamline_sys as sys;

use sys::net::{Interface, Namespace, RouteSocket, run_in_namespace};
use sys::packet::{PacketSender, QdiscMode};
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE};

const ENODEV: i32 = 19;

#[test]
fn interface_facts_match_the_ip_command() {
    let cable = DevicePairSettings { mtu: 4321, addresses: false, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let ip = |words: &str| pair.client.run_ip(words);
    ip(&format!("link set dev {CLIENT_DEVICE} address 02:00:00:00:12:34"));
    ip(&format!("link property add dev {CLIENT_DEVICE} altname a-name-longer-than-fifteen"));
    ip("link add off0 type veth peer name off1");
    let links = pair.client.run_in_network_namespace(RouteSocket::open).unwrap();
    let veth = links.interface_by_name(CLIENT_DEVICE).unwrap();
    assert_eq!((veth.hatype, veth.mtu, veth.operstate), (1, 4321, 6));
    assert!(veth.flags.is_up() && veth.flags.is_running() && !veth.flags.is_loopback());
    assert!(!veth.flags.is_promiscuous());
    assert_eq!(veth.mac, [2, 0, 0, 0, 0x12, 0x34]);
    assert_eq!((veth.kind.as_deref(), veth.lower_index.is_some()), (Some("veth"), true));
    assert_eq!(veth.alternative, ["a-name-longer-than-fifteen"]);
    assert_eq!(links.interface_by_name("a-name-longer-than-fifteen").unwrap().name, CLIENT_DEVICE);
    let [one, other] = ["off0", "off1"].map(|name| links.interface_by_name(name).unwrap());
    assert_eq!((one.lower_index, other.lower_index), (Some(other.index), Some(one.index)));
    assert!(!one.flags.is_up() && one.operstate == 2);
    let all = links.list_interfaces().unwrap();
    let mut names: Vec<&str> = all.iter().map(|each| each.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, [CLIENT_DEVICE, "lo", "off0", "off1"]);
    ip(&format!("link set dev {CLIENT_DEVICE} promisc on"));
    assert!(links.interface_by_name(CLIENT_DEVICE).unwrap().flags.is_promiscuous());
}

#[test]
fn renamed_interface_keeps_its_index() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let links = pair.server.run_in_network_namespace(RouteSocket::open).unwrap();
    let Interface { index, .. } = links.interface_by_name(SERVER_DEVICE).unwrap();
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} name other0"));
    assert_eq!(links.interface_by_index(index).unwrap().name, "other0");
    assert_eq!(links.interface_by_name(SERVER_DEVICE).unwrap_err().errno, ENODEV);
    pair.server.run_ip("link delete dev other0");
    assert_eq!(links.interface_by_index(index).unwrap_err().errno, ENODEV);
}

/// Lists more interfaces than fit into one datagram.
#[test]
fn long_interface_list_is_complete() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    for number in 0..20 {
        pair.client.run_ip(&format!("link add v{number} type veth peer name w{number}"));
    }
    let all =
        pair.client.run_in_network_namespace(RouteSocket::open).unwrap().list_interfaces().unwrap();
    for name in (0..20).flat_map(|number| [format!("v{number}"), format!("w{number}")]) {
        assert!(all.iter().any(|each| each.name == name), "{name}");
    }
    assert_eq!(all.len(), 42);
}

#[test]
fn interface_counters_count_frames() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let [near, far] = [&pair.client, &pair.server]
        .map(|space| space.run_in_network_namespace(RouteSocket::open).unwrap());
    let index = near.interface_by_name(CLIENT_DEVICE).unwrap().index;
    let mut sender = pair
        .client
        .run_in_network_namespace(|| PacketSender::open(index, QdiscMode::Bypass))
        .unwrap();
    sender.send(&[&[0; 60][..]; 100]);
    let sent = near.interface_by_index(index).unwrap().counters;
    assert_eq!((sent.tx_packets, sent.tx_bytes, sent.rx_packets), (100, 6000, 0));
    testkit::net::wait_until("they arrive", || {
        let counters = far.interface_by_name(SERVER_DEVICE).unwrap().counters;
        (counters.rx_packets, counters.rx_bytes, counters.lost_rx_frames()) == (100, 6000, 0)
    });
}

#[test]
fn socket_stays_in_the_namespace_that_opened_it() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let before = Namespace::current().unwrap().inode().unwrap();
    let space = Namespace::open(pair.client.name()).unwrap();
    assert!(!space.is_current().unwrap());
    let (there, links) =
        run_in_namespace(&space, || (space.is_current().unwrap(), RouteSocket::open())).unwrap();
    assert!(there);
    assert!(links.unwrap().interface_by_name(CLIENT_DEVICE).is_ok());
    assert_eq!(Namespace::current().unwrap().inode().unwrap(), before);
    assert!(RouteSocket::open().unwrap().interface_by_name(CLIENT_DEVICE).is_err());
    let path = Namespace::open(pair.client.path().to_str().unwrap()).unwrap();
    assert_eq!(path.inode().unwrap(), space.inode().unwrap());
    let caught = std::panic::catch_unwind(|| run_in_namespace(&space, || panic!("inside")));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"inside"));
}
