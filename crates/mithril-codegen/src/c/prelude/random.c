/* The common generator of random numbers, Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): a key and a counter give
 * four words; there is no state, so that every thread may begin anywhere. */

/* The first `count` words of the stream that the key (seed, stream) names. */
static void mithril_random_bits(int64_t thread, int64_t threads, const int64_t *restrict key, int64_t *restrict words,
        int64_t count) {
    uint64_t seed = (uint64_t)key[0], stream = (uint64_t)key[1];
    const int64_t blocks = (count + 3) / 4, last = mithril_part(blocks, thread + 1, threads);
    for (int64_t block = mithril_part(blocks, thread, threads); block < last; block++) {
        uint32_t x[4] = {
                (uint32_t)block, (uint32_t)((uint64_t)block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
        uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        for (int round = 0; round < 10; round++) {
            uint64_t a = 0xd2511f53u * (uint64_t)x[0], b = 0xcd9e8d57u * (uint64_t)x[2];
            x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k[0];
            x[1] = (uint32_t)b;
            x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k[1];
            x[3] = (uint32_t)a;
            k[0] += 0x9e3779b9u;
            k[1] += 0xbb67ae85u;
        }
        for (int64_t i = 0; i < 4 && 4 * block + i < count; i++) words[4 * block + i] = x[i];
    }
}
