//! Every typed message of the system, one file per actor family
