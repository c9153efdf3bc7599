static MITHRIL_ONCE void mithril_micro_@t@_@rows@(long k, const @type@ *restrict a, const @type@ *restrict panel,
                                  @type@ *restrict tile, int accumulate, const char *next, long stride)
{
    mithril_micro_@t@(@rows@, k, a, panel, tile, accumulate, next, stride);
}
