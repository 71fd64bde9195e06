"""The closed word lists that dialogues and evaluation cases draw from."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


KEYS = _words(
    """amber anchor apple arrow badge basin beacon birch blossom bridge bronze candle canyon castle cedar
    chalk cherry circle cliff cloud clover cobalt comet copper coral cotton crater crystal dawn
    delta desert diamond dragon eagle ember falcon feather fern field flint forest fossil garden
    garnet ginger glacier granite harbor hazel helmet honey hunter indigo iron island ivory jade
    jasmine jungle kettle ladder lagoon lantern lemon lily lotus magnet maple marble meadow melon
    mint mirror moon nectar needle oak ocean olive onyx opal orchid otter palm pearl pepper pine
    planet plum prairie quartz raven reef ribbon river rocket rose ruby saddle saffron sapphire
    shadow silver sparrow spruce star stone storm summit sunset temple thunder tiger timber topaz
    tulip tunnel valley velvet violet walnut willow winter wolf zephyr"""
)
ADJECTIVES = _words("old new red blue green black white small big cold warm quiet bright dark early late")
NAMES = _words(
    """Alice Anna Ben Carla Clara David Diana Emma Eric Felix Grace Henry Ivan Jack Julia Karl Laura Leo
    Lisa Maria Mark Nina Oscar Paul Peter Rita Rosa Sam Sara Simon Tom Vera"""
)
CITIES = _words(
    """Athens Berlin Bern Boston Cairo Delhi Dublin Geneva Kyoto Lima Lisbon London Madrid Milan Moscow
    Oslo Paris Prague Rome Seoul Tokyo Turin Vienna Warsaw"""
)
OBJECTS = _words(
    """bag ball book bottle box camera chair clock coat cup hat key knife lamp letter map phone pen plate
    ring shoe spoon table ticket umbrella watch"""
)
ROOMS = _words("attic barn bathroom bedroom cellar garage garden hall kitchen library office shed")
ANIMALS = _words(
    "bear bird camel cat cow deer dog duck fish fox frog goat hen horse lion mouse owl pig rabbit sheep"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
