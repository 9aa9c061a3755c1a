//! Ids, deadlines, supervision policy, the clock and randomness seam, the wire codec, fault points
