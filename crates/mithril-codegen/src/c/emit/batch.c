/* Bytes of a row of each input and output; 0: it has no rows. */
static const size_t @prefix@_input_rows[@input_count@] = {@input_rows@};
static const size_t @prefix@_output_rows[@output_count@] = {@output_rows@};

size_t @prefix@_batch_arena_bytes(int threads) {
    return (@prefix@_arena_bytes(threads) + 63) / 64 * 64 + @spare@;
}

int @prefix@_run_batch(const void *const inputs[], void *const outputs[], int64_t batch, const void *packed, void *arena,
    const mithril_pool *pool) {
    const void *from[@input_count@] = {0};
    void *to[@output_count@] = {0};
    if (batch < 0) return MITHRIL_ERROR_ARGUMENT;
    for (int64_t first = 0; first < batch; first += @block@) {
        /* A block that is not full is computed beside, with its last row in the place of those that are not there. */
        const int64_t rows = batch - first < @block@ ? batch - first : @block@;
        char *spare = (char *)arena + @prefix@_batch_arena_bytes(pool ? pool->threads : 1) - @spare@;
        for (int i = 0; i < @inputs@; i++) {
            const size_t row = @prefix@_input_rows[i];
            from[i] = row > 0 ? (const char *)inputs[i] + (size_t)first * row : inputs[i];
            if (row == 0 || rows == @block@) continue;
            memcpy(spare, from[i], (size_t)rows * row);
            for (int64_t copy = rows; copy < @block@; copy++)
                memcpy(spare + (size_t)copy * row, spare + (size_t)(rows - 1) * row, row);
            from[i] = spare;
            spare += (row * @block@ + 63) / 64 * 64;
        }
        for (int i = 0; i < @outputs@; i++) {
            const size_t row = @prefix@_output_rows[i];
            to[i] = (char *)outputs[i] + (size_t)first * row;
            if (rows == @block@) continue;
            to[i] = spare;
            spare += (row * @block@ + 63) / 64 * 64;
        }
        const int error = @prefix@_run(from, to, packed, arena, pool);
        if (error) return error;
        for (int i = 0; i < @outputs@ && rows < @block@; i++)
            memcpy((char *)outputs[i] + (size_t)first * @prefix@_output_rows[i], to[i], (size_t)rows * @prefix@_output_rows[i]);
    }
    return 0;
}
