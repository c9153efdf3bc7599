/* Which weights are those of a point: with steps of 2, all points of odd pixels of a line have its last ones. */
MITHRIL_INLINE long mithril_winograd@m@_weight(long point) {
    const long y = point / @tile_wide@, x = point % @tile_wide@;
    return (y < @weights_high@ ? y : @weights_high@ - 1) * @weights_wide@ + (x < @weights_wide@ ? x : @weights_wide@ - 1);
}
