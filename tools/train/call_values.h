// What the slots of tool calls are filled with. A list of names is shared by several tools where it
// can be, so that a value held back from one is known from another.
#pragma once

#include <array>
#include <string_view>

namespace train {

/// A choice: how a request says it, and the JSON value that it stands for.
struct Choice {
  std::string_view said, value;
};

inline constexpr std::string_view kCities[] = {
    "Oslo",   "Paris",     "Lisbon",    "Tokyo",        "Berlin",    "Madrid",   "Vienna",
    "Prague", "Dublin",    "Helsinki",  "Rome",         "Athens",    "Warsaw",   "Budapest",
    "Geneva", "Zurich",    "Amsterdam", "Brussels",     "Seoul",     "Osaka",    "New York",
    "Boston", "Chicago",   "Denver",    "Seattle",      "Toronto",   "Montreal", "Lima",
    "Quito",  "Bogota",    "Santiago",  "Cairo",        "Nairobi",   "Accra",    "Lagos",
    "Tunis",  "Cape Town", "Delhi",     "Mumbai",       "Bangkok",   "Hanoi",    "Manila",
    "Sydney", "Perth",     "Auckland",  "Buenos Aires", "San Diego", "Riga"};

inline constexpr std::string_view kPeople[] = {
    "Anna",  "Ben",   "Clara",  "David",  "Emma",   "Felix",  "Grace",    "Hugo",
    "Ines",  "Jonas", "Kira",   "Leo",    "Maria",  "Nils",   "Olga",     "Paul",
    "Quinn", "Rosa",  "Samuel", "Tara",   "Uma",    "Victor", "Wanda",    "Xavier",
    "Yusuf", "Zoe",   "Amir",   "Bianca", "Carlos", "Dora",   "Elena",    "Farid",
    "Greta", "Henry", "Ivan",   "Julia",  "Kenji",  "Lena",   "Mateo",    "Nadia",
    "Oscar", "Priya", "Ravi",   "Sofia",  "Tomas",  "Vera",   "Aunt May", "Uncle Bob"};

inline constexpr std::string_view kTitles[] = {
    "Blue Morning",  "Paper Boats",    "The Long Road",   "Silver Rain",   "Night Train",
    "Golden Hour",   "Winter Song",    "Red Balloon",     "Second Summer", "Open Water",
    "Glass Houses",  "Slow Dance",     "Northern Lights", "Old Friends",   "Wild Honey",
    "City of Stars", "Falling Leaves", "Green Door",      "Hollow Moon",   "Island Time",
    "Jade Garden",   "Kites",          "Last Harvest",    "Marble Sky",    "Nothing New",
    "Olive Tree",    "Quiet Storm",    "River Stone",     "Salt and Sand", "The Corner Table"};

inline constexpr std::string_view kItems[] = {
    "milk",       "oat milk", "bread",  "eggs",         "butter",    "rice",        "apples",
    "bananas",    "tomatoes", "onions", "garlic",       "olive oil", "coffee",      "green tea",
    "pasta",      "cheese",   "yogurt", "chicken",      "salmon",    "black beans", "lentils",
    "flour",      "sugar",    "honey",  "dish soap",    "batteries", "light bulbs", "paper towels",
    "toothpaste", "shampoo",  "pizza",  "noodles",      "dumplings", "tacos",       "salad",
    "burgers",    "falafel",  "ramen",  "spring rolls", "lemonade"};

inline constexpr std::string_view kTopics[] = {
    "space travel",   "electric cars",     "volcanoes",     "chess",          "solar panels",
    "jazz history",   "coral reefs",       "rock climbing", "sourdough",      "ancient Rome",
    "bird migration", "marathon training", "robotics",      "tea ceremonies", "glaciers",
    "mountain bikes", "quantum physics",   "street food",   "origami",        "wind power",
    "deep sea fish",  "photography",       "urban gardens", "board games",    "film music",
    "honey bees",     "lighthouses",       "night trains",  "pottery",        "tax rules"};

inline constexpr std::string_view kPhrases[] = {"I will be late",
                                                "see you soon",
                                                "good morning",
                                                "where is the station",
                                                "happy birthday",
                                                "the meeting is cancelled",
                                                "thank you for dinner",
                                                "I'm on my way",
                                                "call me back",
                                                "how much does it cost",
                                                "dinner is ready",
                                                "please bring the keys",
                                                "the package has arrived",
                                                "I miss you",
                                                "we need more time",
                                                "good luck today",
                                                "my train is delayed",
                                                "can we talk later",
                                                "the door is open",
                                                "two coffees please",
                                                "I lost my phone",
                                                "let's meet at noon",
                                                "have a safe trip",
                                                "the weather is lovely",
                                                "don't forget the milk",
                                                "I would like the bill",
                                                "it starts at eight",
                                                "nice to meet you",
                                                "the cat is asleep",
                                                "I can't find my ticket"};

/// Words of texts that are put together at random.
inline constexpr std::string_view kWords[] = {
    "the",   "a",      "my",     "our",   "your",   "we",     "they",   "she",   "will",  "need",
    "want",  "bring",  "left",   "found", "saw",    "bought", "broke",  "fixed", "car",   "house",
    "dog",   "report", "ticket", "table", "garden", "friend", "doctor", "plan",  "old",   "new",
    "small", "big",    "late",   "early", "now",    "soon",   "again",  "here",  "there", "near",
    "with",  "for",    "from",   "about", "before", "after",  "and",    "not"};

inline constexpr Choice kDays[] = {{"today", R"("today")"},
                                   {"tomorrow", R"("tomorrow")"},
                                   {"on Monday", R"("monday")"},
                                   {"on Tuesday", R"("tuesday")"},
                                   {"on Wednesday", R"("wednesday")"},
                                   {"on Thursday", R"("thursday")"},
                                   {"on Friday", R"("friday")"},
                                   {"on Saturday", R"("saturday")"},
                                   {"on Sunday", R"("sunday")"}};
inline constexpr Choice kDegrees[] = {{"celsius", R"("celsius")"},
                                      {"fahrenheit", R"("fahrenheit")"}};
inline constexpr Choice kDurations[] = {
    {"seconds", R"("second")"}, {"minutes", R"("minute")"}, {"hours", R"("hour")"}};
inline constexpr Choice kRooms[] = {
    {"kitchen", R"("kitchen")"},         {"bedroom", R"("bedroom")"}, {"bathroom", R"("bathroom")"},
    {"living room", R"("living_room")"}, {"hallway", R"("hallway")"}, {"office", R"("office")"},
    {"garage", R"("garage")"},           {"attic", R"("attic")"}};
inline constexpr Choice kSwitch[] = {{"on", "true"}, {"off", "false"}};
inline constexpr Choice kLock[] = {{"lock", "true"}, {"unlock", "false"}};
inline constexpr Choice kDoors[] = {{"front door", R"("front")"},
                                    {"back door", R"("back")"},
                                    {"garage door", R"("garage")"},
                                    {"cellar door", R"("cellar")"},
                                    {"garden gate", R"("gate")"}};
inline constexpr Choice kVideo[] = {{"video call", "true"},
                                    {"video chat", "true"},
                                    {"voice call", "false"},
                                    {"phone call", "false"}};
inline constexpr Choice kShuffle[] = {
    {"shuffled", "true"}, {"in random order", "true"}, {"in order", "false"}};
inline constexpr Choice kCurrencies[] = {
    {"euros", R"("EUR")"},         {"dollars", R"("USD")"},       {"pounds", R"("GBP")"},
    {"yen", R"("JPY")"},           {"Swiss francs", R"("CHF")"},  {"Norwegian kroner", R"("NOK")"},
    {"Indian rupees", R"("INR")"}, {"Mexican pesos", R"("MXN")"}, {"EUR", R"("EUR")"},
    {"USD", R"("USD")"},           {"GBP", R"("GBP")"},           {"JPY", R"("JPY")"}};
inline constexpr Choice kUnits[] = {
    {"miles", R"("mi")"},     {"kilometers", R"("km")"}, {"feet", R"("ft")"},
    {"meters", R"("m")"},     {"inches", R"("in")"},     {"pounds", R"("lb")"},
    {"kilograms", R"("kg")"}, {"ounces", R"("oz")"},     {"grams", R"("g")"},
    {"liters", R"("l")"},     {"gallons", R"("gal")"}};
inline constexpr Choice kLanguages[] = {
    {"French", R"("fr")"},    {"German", R"("de")"},   {"Spanish", R"("es")"},
    {"Italian", R"("it")"},   {"Dutch", R"("nl")"},    {"Polish", R"("pl")"},
    {"Norwegian", R"("no")"}, {"Finnish", R"("fi")"},  {"Greek", R"("el")"},
    {"Turkish", R"("tr")"},   {"Japanese", R"("ja")"}, {"Korean", R"("ko")"},
    {"Hindi", R"("hi")"},     {"Arabic", R"("ar")"},   {"Swahili", R"("sw")"},
    {"Portuguese", R"("pt")"}};
inline constexpr Choice kTravel[] = {{"by car", R"("car")"},
                                     {"by train", R"("train")"},
                                     {"by bike", R"("bike")"},
                                     {"by bus", R"("bus")"},
                                     {"on foot", R"("foot")"}};
inline constexpr Choice kOperations[] = {
    {"plus", R"("+")"}, {"minus", R"("-")"}, {"times", R"("*")"}, {"divided by", R"("/")"}};
inline constexpr Choice kLists[] = {{"shopping list", R"("shopping")"},
                                    {"wish list", R"("wish")"},
                                    {"party list", R"("party")"},
                                    {"packing list", R"("packing")"}};
inline constexpr Choice kCabins[] = {
    {"economy", R"("economy")"}, {"business", R"("business")"}, {"first class", R"("first")"}};

}  // namespace train
