"""The closed word lists that dialogues and evaluation cases draw from."""

KEYS = tuple(
    """amber anchor apple arrow badge basin beacon birch blossom bridge bronze candle canyon castle cedar chalk cherry
    circle cliff cloud clover cobalt comet copper coral cotton crater crystal dawn delta desert diamond dragon eagle
    ember falcon feather fern field flint forest fossil garden garnet ginger glacier granite harbor hazel helmet
    honey hunter indigo iron island ivory jade jasmine jungle kettle ladder lagoon lantern lemon lily lotus magnet
    maple marble meadow melon mint mirror moon nectar needle oak ocean olive onyx opal orchid otter palm pearl pepper
    pine planet plum prairie quartz raven reef ribbon river rocket rose ruby saddle saffron sapphire shadow silver
    sparrow spruce star stone storm summit sunset temple thunder tiger timber topaz tulip tunnel valley velvet violet
    walnut willow winter wolf zephyr""".split()
)
ADJECTIVES = tuple("old new red blue green black white small big cold warm quiet bright dark early late".split())
NAMES = tuple(
    """Alice Anna Ben Carla Clara David Diana Emma Eric Felix Grace Henry Ivan Jack Julia Karl Laura Leo Lisa Maria
    Mark Nina Oscar Paul Peter Rita Rosa Sam Sara Simon Tom Vera""".split()
)
CITIES = tuple(
    """Athens Berlin Bern Boston Cairo Delhi Dublin Geneva Kyoto Lima Lisbon London Madrid Milan Moscow Oslo Paris
    Prague Rome Seoul Tokyo Turin Vienna Warsaw""".split()
)
OBJECTS = tuple(
    """bag ball book bottle box camera chair clock coat cup hat key knife lamp letter map phone pen plate ring shoe
    spoon table ticket umbrella watch""".split()
)
ROOMS = tuple("attic barn bathroom bedroom cellar garage garden hall kitchen library office shed".split())
ANIMALS = tuple("bear bird camel cat cow deer dog duck fish fox frog goat hen horse lion mouse owl pig rabbit sheep".split())
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
