for (long lane = 0; lane < @lanes_end@; lane++) {
    const @type@ accumulator = from[lane];@coordinates@
    out[@out_place@] = @expression@;
}
