//! Nodes that are cut off, partitioned, stopped, killed and restarted at random moments: they always find together again,
//! and no question ever takes effect twice.

use std::time::Duration;

use greenroom_cluster::ClusterConfig;
use greenroom_core::{Random, Seed};
use rand::Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::driver::{Node, Proxy, asks, config, ended, wait_for_all};
use super::{LONG, free_address};

const NODES: usize = 4;

/// A place at which a node runs, reached by the others through its proxy only.
struct Place {
    name: String,
    bind: String,
    proxy: Proxy,
    node: Option<Node>,
}

impl Place {
    fn start(&mut self, seeds: &[String]) {
        let seeds: Vec<&str> = seeds.iter().map(String::as_str).collect();
        let advertise = self.proxy.address.clone();
        let config = ClusterConfig { bind: self.bind.clone(), advertise, ..config(&self.name, &seeds) };
        self.node = Some(Node::start(&config));
    }

    fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }
}

/// Does something to one of the nodes; gives what it was.
fn harm(place: &mut Place, seeds: &[String], random: &mut Random) -> &'static str {
    let pause = |random: &mut Random| std::thread::sleep(Duration::from_millis(random.random_range(50..2800)));
    match random.random_range(0..6) {
        0..=1 => {
            place.proxy.cut();
            "cut"
        }
        2 => {
            place.proxy.lets_through(false, random.random());
            pause(random);
            place.proxy.lets_through(true, true);
            "partition"
        }
        3 => {
            place.proxy.lets_through(true, false);
            pause(random);
            place.proxy.lets_through(true, true);
            "one way"
        }
        4 => {
            place.node().signal(Signal::STOP);
            pause(random);
            place.node().signal(Signal::CONT);
            "stop"
        }
        _ => {
            place.node = None;
            place.start(seeds);
            "kill"
        }
    }
}

fn chaos(seed: u64, harms: usize) {
    println!("seed {seed}");
    let mut random = Seed::new(seed).random();
    let make = |index| {
        let (name, bind, proxy) = (format!("n{index}"), free_address(), Proxy::new());
        proxy.leads_to(&bind);
        Place { name, bind, proxy, node: None }
    };
    let mut places: Vec<Place> = (0..NODES).map(make).collect();
    // everybody knows the first two, so that either may be away
    let seeds: Vec<String> = places[..2].iter().map(|place| place.proxy.address.clone()).collect();
    places.iter_mut().for_each(|place| place.start(&seeds));
    let mut first = 0;
    for number in 0..harms {
        let mut asking = Vec::new();
        for place in &places {
            for other in (0..NODES).map(|index| format!("n{index}")).filter(|other| *other != place.name) {
                asking.push((place.name.clone(), place.node().begin(asks(&other, "count", 200, 8, 0, 4000, first))));
                first += 1000;
            }
        }
        let at = random.random_range(0..NODES);
        let what = harm(&mut places[at], &seeds, &mut random);
        println!("{number}: {what} n{at}");
        for (name, asked) in asking {
            // who was killed answers no command
            let tally = asked.recv_timeout(LONG);
            assert!(tally.is_ok() || name == format!("n{at}"), "{name} did not come to an end");
            assert_eq!(tally.map_or(0, |tally: Value| ended(&tally, "wrong")), 0, "a question took effect twice");
        }
    }
    let nodes: Vec<&Node> = places.iter().map(Place::node).collect();
    wait_for_all(&nodes);
    for node in &nodes {
        for other in nodes.iter().filter(|other| other.name != node.name) {
            let tally = node.count(&other.name, 50, 8, first);
            assert_eq!(ended(&tally, "answered"), 50, "{} asks {} in the end: {tally}", node.name, other.name);
            assert_eq!(node.call(json!({ "do": "notes", "node": other.name }))["most"], 1);
            first += 1000;
        }
    }
}

#[test]
fn nodes_that_are_harmed_at_random_find_together_again() {
    chaos(1, 12);
}

#[test]
#[ignore = "minutes of it"]
fn nodes_that_are_harmed_for_long_find_together_again() {
    for seed in 10..20 {
        chaos(seed, 30);
    }
}
