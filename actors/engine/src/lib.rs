//! EngineProxy and EnginePool: the SGLang client, engine life, routing
