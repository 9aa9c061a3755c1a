//! WeightPublisher and WeightReceiver: delta codec, version chain, carriers
