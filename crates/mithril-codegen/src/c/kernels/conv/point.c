/* A panel of the pixels from `first` on, [channel][2 * LANES], where a pixel of the result is one of the image. */
static void @name@_gather(const @type@ *restrict image, long first, @type@ *restrict panel) {
    enum { LANES = @lanes@, WIDTH = 2 * LANES, PIXELS = @oh@ * @ow@ };
    if (first + WIDTH <= PIXELS)
        for (long channel = 0; channel < @group_channels@; channel++)
            for (long i = 0; i < WIDTH; i += LANES)
                MITHRIL_STORE(@t@, panel + channel * WIDTH + i, MITHRIL_LOAD(@t@, image + channel * PIXELS + first + i));
    else
        for (long channel = 0; channel < @group_channels@; channel++)
            for (long i = 0; i < WIDTH; i++)
                panel[channel * WIDTH + i] = i < PIXELS % WIDTH ? image[channel * PIXELS + first + i] : 0;
}
