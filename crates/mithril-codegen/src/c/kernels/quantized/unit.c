/* The groups of rows and the panel of this unit, with the panel's words and the scales of its matrix. */
const long panel = unit % PANELS, block = unit / PANELS, batch = block / BLOCKS;
const long first = block % BLOCKS * BLOCK, last = first + BLOCK < GROUPS ? first + BLOCK : GROUPS;
const long matrix = @matrix@;
const uint32_t *words = (const uint32_t *)packed + (matrix * PANELS + panel) * PANEL;
const float *const scales = (const float *)packed + (long)@matrices@ * PANELS * PANEL + matrix * PANELS * WIDTH;
