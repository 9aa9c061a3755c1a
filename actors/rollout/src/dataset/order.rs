//! The order of tasks: endless epochs, each a permutation that depends on seed and epoch alone.

use greenroom_core::Seed;
use rand::Rng;

/// The place in the file (from 0) of the task at `position`, for a data set of `tasks` tasks (at least one).
pub fn task_at(seed: Seed, tasks: usize, shuffle: bool, position: u64) -> usize {
    Order::new(seed, tasks, shuffle).task_at(position)
}

/// Remembers the permutation of the last epoch asked for.
pub(super) struct Order {
    seed: Seed,
    tasks: usize,
    shuffle: bool,
    epoch: Option<(u64, Vec<u32>)>,
}

impl Order {
    pub(super) fn new(seed: Seed, tasks: usize, shuffle: bool) -> Self {
        Self { seed, tasks, shuffle, epoch: None }
    }

    pub(super) fn task_at(&mut self, position: u64) -> usize {
        let tasks = self.tasks as u64;
        let (epoch, place) = (position / tasks, (position % tasks) as usize);
        if !self.shuffle {
            return place;
        }
        let (seed, tasks) = (self.seed, self.tasks);
        let known = self.epoch.take().filter(|(known, _)| *known == epoch);
        let (_, permutation) = self.epoch.insert(known.unwrap_or_else(|| (epoch, permutation(seed, tasks, epoch))));
        permutation[place] as usize
    }
}

/// Fisher and Yates' shuffle.
fn permutation(seed: Seed, tasks: usize, epoch: u64) -> Vec<u32> {
    let mut random = seed.child_numbered("dataset.epoch", epoch).random();
    let mut order: Vec<u32> = (0..tasks as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.random_range(0..=last));
    }
    order
}
