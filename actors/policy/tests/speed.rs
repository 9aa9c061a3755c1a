//! Not a promise but a measurement: `cargo test -p greenroom-policy --test speed -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use greenroom_policy::generation::{GenerationEvent, GenerationRequest, GeneratorOptions, start};
use greenroom_policy::{ModelConfig, Network, Parameters, TinyModel};
use tch::{Kind, Tensor};
use tokio::time::Instant;

/// Processor time of this process so far, seconds; on a busy machine the better measure.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[tokio::test]
#[ignore = "a measurement"]
async fn generation_speed() {
    let config = ModelConfig::tiny(&TinyModel::default()).unwrap();
    let parameters = Parameters::init(&config, 1).unwrap();
    println!("{} weights", parameters.weight_count());
    for batch_invariant in [true, false] {
        for concurrent in [1_u32, 8, 32] {
            let options = GeneratorOptions { batch_invariant, ..GeneratorOptions::default() };
            let handle = start(&config, &parameters, Path::new("m"), options).unwrap();
            let (began, processor) = (Instant::now(), processor_seconds());
            let mut streams = Vec::new();
            for number in 0..concurrent {
                let ids = (0..300).map(|n| (n * 31 + number * 17) % 1000).collect();
                let mut request = GenerationRequest::new(format!("r{number}"), ids);
                request.params.max_new_tokens = 128;
                request.params.ignore_eos = true;
                streams.push(handle.submit(request).await.unwrap());
            }
            let (mut tokens, mut first) = (0, None);
            for mut stream in streams {
                while let Some(event) = stream.recv().await {
                    if let GenerationEvent::Tokens(more) = event {
                        first.get_or_insert_with(|| began.elapsed());
                        tokens += more.len();
                    }
                }
            }
            let seconds = began.elapsed().as_secs_f64();
            let prompts = 300 * concurrent;
            let rows = tokens as f64 + f64::from(prompts);
            println!(
                "invariant {batch_invariant}, {concurrent} at once: {:.0} tokens/s, {:.0} with prompts; {:.1} us of processor a row",
                tokens as f64 / seconds,
                rows / seconds,
                (processor_seconds() - processor) * 1e6 / rows
            );
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn training_speed() {
    tch::set_num_threads(1);
    let config = ModelConfig::tiny(&TinyModel::default()).unwrap();
    let parameters = Parameters::init(&config, 1).unwrap().with_gradients(true);
    let network = Network::new(&config, &parameters).unwrap();
    for (sequences, length) in [(64_i64, 64_i64), (16, 400), (4, 1000)] {
        let bounds: Vec<i64> = (0..=sequences).map(|number| number * length).collect();
        let ids: Vec<i64> = (0..sequences * length).map(|n| (n * 7919) % 1000).collect();
        let (ids, positions) = (Tensor::from_slice(&ids), network.packed_positions(&bounds).unwrap());
        let (began, processor) = (Instant::now(), processor_seconds());
        let steps = 3;
        for _ in 0..steps {
            let hidden = network.forward_packed(&ids, &positions, &bounds).unwrap();
            let logits = network.logits(&hidden).unwrap();
            logits.log_softmax(-1, Kind::Float).gather(1, &ids.unsqueeze(1), false).mean(Kind::Float).backward();
        }
        let tokens = (steps * sequences * length) as f64;
        println!(
            "{sequences} x {length}: {:.0} tokens/s trained, {:.0} a second of processor",
            tokens / began.elapsed().as_secs_f64(),
            tokens / (processor_seconds() - processor)
        );
    }
}
