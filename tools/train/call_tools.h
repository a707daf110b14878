// The catalogue: 24 tools, their typed slots, and the ways in which a request asks for each.
//
// A wording is text with {slot}, which says a value, [a part], which is left out half of the time,
// and (one|of|several). A slot that a request does not mention is no argument of its call.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "call_values.h"

namespace train {

enum class Kind {
  kName,     // from a list, or made up
  kText,     // a phrase, or words in a row
  kChoice,   // what is said stands for a value
  kInteger,  // in [low, high]
  kNumber,   // in [low, high], often with one decimal
  kTime,     // "7:30 pm" stands for "19:30"
  kDigits,   // a string of `low` to `high` digits
};

struct Slot {
  std::string_view name;
  Kind kind;
  std::span<const std::string_view> names{};
  std::span<const Choice> choices{};
  int low = 0, high = 0;
  std::string_view inside{};  // the object that it stands in; empty: the arguments themselves
};

struct Tool {
  std::string_view name, description;
  std::vector<Slot> slots;  // in the order of a call; those of one inner object stand together
  std::vector<std::string_view> wordings;
};

inline Slot named(std::string_view name, std::span<const std::string_view> names) {
  return {.name = name, .kind = Kind::kName, .names = names};
}
inline Slot text(std::string_view name) {
  return {.name = name, .kind = Kind::kText};
}
inline Slot chosen(std::string_view name, std::span<const Choice> choices) {
  return {.name = name, .kind = Kind::kChoice, .choices = choices};
}
inline Slot ranged(Kind kind, std::string_view name, int low, int high) {
  return {.name = name, .kind = kind, .low = low, .high = high};
}
inline Slot integer(std::string_view name, int low, int high) {
  return ranged(Kind::kInteger, name, low, high);
}
inline Slot number(std::string_view name, int low, int high) {
  return ranged(Kind::kNumber, name, low, high);
}
inline Slot digits(std::string_view name, int low, int high) {
  return ranged(Kind::kDigits, name, low, high);
}
inline Slot time_of_day(std::string_view name) {
  return {.name = name, .kind = Kind::kTime};
}
inline Slot inside(std::string_view object, Slot slot) {
  slot.inside = object;
  return slot;
}

inline const std::vector<Tool>& tools() {
  static const std::vector<Tool> kTools{
      {"get_weather",
       "The weather forecast of a city",
       {named("city", kCities), chosen("day", kDays), chosen("unit", kDegrees)},
       {"(What will|How will) the weather be in {city}[ {day}][ in {unit}]?",
        "(What is|What's) the (weather|forecast) (for|in) {city}[ {day}][ in {unit}]?",
        "(Show|Tell|Give) me the (weather|forecast) (for|in) {city}[ {day}][, in {unit}].",
        "Will it (rain|snow|be sunny|be cold) in {city} {day}?",
        "[{day} ](weather|forecast) {city}[ {unit}]",
        "(Weather|Forecast) (for|in) {city}[ {day}][ in {unit}]"}},
      {"get_time",
       "The local time of a city",
       {named("city", kCities)},
       {"(What time is it|What is the time|What's the time) in {city}[ (now|right now)]?",
        "(Tell|Give) me the (current|local) time in {city}.", "How late is it in {city}?",
        "(Current|Local) time in {city}"}},
      {"set_alarm",
       "Sets an alarm",
       {time_of_day("time"), chosen("day", kDays)},
       {"(Set|Create|Make) an alarm (for|at) {time}[ {day}].", "Wake me[ up] at {time}[ {day}].",
        "I (need|want|have) to (get up|wake up) at {time}[ {day}].", "Alarm[ {day}] at {time}"}},
      {"set_timer",
       "Starts a timer",
       {integer("amount", 1, 90), chosen("unit", kDurations)},
       {"(Set|Start) a timer (for|of) {amount} {unit}.", "(Count down|Time) {amount} {unit}.",
        "(Start|Run) a {amount} {unit} timer.", "Timer {amount} {unit}"}},
      {"send_message",
       "Sends a text message",
       {named("to", kPeople), text("text")},
       {"(Send|Write) {to} a (message|text) (saying|that says): {text}",
        "(Tell|Text|Message) {to} \"{text}\".", "(Send|Write) a (message|text) to {to}: {text}",
        "(Send|Text) \"{text}\" to {to}[ (now|please)].", "Let {to} know: {text}"}},
      {"start_call",
       "Calls a person",
       {named("person", kPeople), chosen("video", kVideo)},
       {"(Start|Make|Place) a {video} (to|with) {person}[ (now|right now)].",
        "(Call|Ring|Phone) {person}[ (now|right now)].",
        "I (want|need|would like) to (call|talk to|speak to) {person}[ in a {video}].",
        "{video} with {person}"}},
      {"convert_currency",
       "Converts an amount of money",
       {number("amount", 1, 999), chosen("from", kCurrencies), chosen("to", kCurrencies)},
       {"(Convert|Change|Exchange) {amount} {from} (to|into) {to}.",
        "(How much is|How much are|What is|What are) {amount} {from} in {to}?",
        "How many {to} (do I get|are there|would I get) for {amount} {from}?",
        "{amount} {from} in {to}"}},
      {"convert_units",
       "Converts a measure",
       {number("value", 1, 999), chosen("from", kUnits), chosen("to", kUnits)},
       {"(Convert the measure|Convert the quantity) {value} {from} (to|into) {to}.",
        "(As a measure|As a unit), (what is|what are) {value} {from} in {to}?",
        "Change the units: {value} {from} to {to}[, please]", "Units: {value} {from} as {to}"}},
      {"translate",
       "Translates a text",
       {text("text"), chosen("language", kLanguages)},
       {"(Translate|Put) \"{text}\" (to|into) {language}.",
        "(How do you say|How do I say|What is) \"{text}\" in {language}?",
        "(Translate|Put this) into {language}: {text}", "{language} for \"{text}\""}},
      {"play_music",
       "Plays a song or an album",
       {named("title", kTitles), named("artist", kPeople), chosen("shuffle", kShuffle)},
       {"Play {title}[ by {artist}][ {shuffle}].",
        "(I want|I'd like) to (hear|listen to) {title}[ by {artist}][ {shuffle}].",
        "Put on {title}[ by {artist}][, {shuffle}].",
        "(Start|Stream) the (song|album|record) {title}[ by {artist}][ {shuffle}]."}},
      {"set_volume",
       "Sets the volume in percent",
       {integer("level", 0, 100)},
       {"(Set|Change|Turn) the (volume|sound) to {level}[ percent].",
        "(Volume|Sound) (at|to) {level}[ percent]",
        "(Make it|Make the sound) {level} percent loud.", "I (want|need) the volume at {level}."}},
      {"set_light",
       "Switches the light of a room",
       {chosen("room", kRooms), chosen("on", kSwitch), integer("brightness", 1, 100)},
       {"(Turn|Switch) {on} the (light|lights|lamp) in the {room}[ at {brightness} percent].",
        "(Turn|Switch) the {room} (light|lights|lamp) {on}[, brightness {brightness}].",
        "{room} (light|lights) {on}[ at {brightness} percent]",
        "I (want|need) the (light|lights) in the {room} {on}."}},
      {"set_heating",
       "Sets the temperature of a room",
       {chosen("room", kRooms), number("degrees", 14, 28)},
       {"(Heat|Warm|Cool) the {room} to {degrees} degrees.",
        "Set the (heating|thermostat|temperature) (in|of) the {room} to {degrees}[ degrees].",
        "I (want|need|would like) {degrees} degrees in the {room}.",
        "{room} (heating|thermostat) to {degrees}"}},
      {"lock_door",
       "Locks or unlocks a door",
       {chosen("door", kDoors), chosen("locked", kLock), integer("minutes", 1, 60)},
       {"[Please ]{locked} the {door}[ (now|right now)].",
        "(Can|Could) you {locked} the {door}[ in {minutes} minutes]?",
        "I (want|need) you to {locked} the {door}[ in {minutes} minutes].",
        "In {minutes} minutes, {locked} the {door}.", "{locked} {door}"}},
      {"create_event",
       "Puts an event into the calendar",
       {named("title", kTopics), inside("when", chosen("day", kDays)),
        inside("when", time_of_day("time")), named("guest", kPeople)},
       {"(Create|Add|Make) an event {title} {day} at {time}[ with {guest}].",
        "(Schedule|Plan|Book) a (meeting|talk|session) about {title}[ with {guest}] {day} at "
        "{time}.",
        "Put {title} (in|into) my calendar {day} at {time}[ with {guest}].",
        "(Calendar|Event): {title}, {day}, {time}[, with {guest}]"}},
      {"book_flight",
       "Books a flight",
       {inside("route", named("from", kCities)), inside("route", named("to", kCities)),
        chosen("day", kDays), chosen("cabin", kCabins)},
       {"(Book|Find|Get) (me|us) a flight from {from} to {to} {day}[ in {cabin}].",
        "I (want|need|have) to fly from {from} to {to} {day}[, {cabin}].",
        "(Book|Reserve) a[n] {cabin} (flight|seat on a plane) to {to} from {from} {day}.",
        "Flight {from} to {to} {day}[, {cabin}]"}},
      {"book_table",
       "Reserves a table in a restaurant",
       {named("restaurant", kTitles), integer("people", 1, 20), chosen("day", kDays),
        time_of_day("time")},
       {"(Book|Reserve) a table (at|in) {restaurant} for {people}[ people] {day} at {time}.",
        "(Get|Find) us a table for {people} at {restaurant}, {day} at {time}.",
        "(I'd|We'd) like to (eat|dine) at {restaurant} {day} at {time}, {people} (people|guests).",
        "Table for {people}, {restaurant}, {day}, {time}"}},
      {"order_food",
       "Orders food from a restaurant",
       {named("restaurant", kTitles), inside("dish", named("name", kItems)),
        inside("dish", integer("count", 1, 12))},
       {"Order {count} {name} from {restaurant}[ (now|for dinner|for lunch)].",
        "(Get|Bring) (me|us) {count} (portions|orders) of {name} from {restaurant}.",
        "(I'd|We'd) like {count} {name} from {restaurant}.",
        "From {restaurant}: {count} {name}[, please]"}},
      {"get_route",
       "The way from one city to another",
       {named("from", kCities), named("to", kCities), chosen("by", kTravel)},
       {"(How do I|How can I|How do we) get from {from} to {to}[ {by}]?",
        "(Show|Give|Find) me the (way|route) from {from} to {to}[ {by}].",
        "(Directions|Route) from {from} to {to}[ {by}]",
        "What is the (best|fastest|shortest) (way|route) to {to} from {from}[ {by}]?"}},
      {"add_to_list",
       "Adds an item to a list",
       {named("item", kItems), integer("quantity", 1, 50), chosen("list", kLists)},
       {"(Add|Put) [{quantity} ]{item} (to|on) (my|the) {list}.",
        "(My|The) {list} needs [{quantity} ]{item}.",
        "(Write|Note) [{quantity} ]{item} on the {list}.", "{list}: [{quantity} ]{item}"}},
      {"search_web",
       "Searches the web",
       {named("query", kTopics), integer("results", 1, 20)},
       {"(Search|Search the web|Look|Google) for {query}[, {results} results].",
        "(Find|Show) me [{results} ](pages|articles|results) about {query}.",
        "(Look up|Search) {query} (online|on the web)[, {results} results].",
        "What (can you find|does the web say) about {query}?"}},
      {"track_order",
       "The state of an order",
       {digits("order", 4, 8)},
       {"Where is (my order|order|my package|package)[ number] {order}?",
        "Track (my order|order|my package|package)[ number] {order}.",
        "(What is|What's) the (status|state) of order[ number] {order}?",
        "(Has|Did) order {order} (shipped|arrive|ship|arrived)?"}},
      {"add_contact",
       "Saves a contact",
       {named("name", kPeople), inside("details", digits("phone", 5, 9)),
        inside("details", named("city", kCities))},
       {"(Save|Add) {name} (as a contact|to my contacts): {phone}, {city}.",
        "(Add|Create|Save) a contact {name} (in|from) {city} with (the number|number|phone) "
        "{phone}.",
        "{name} (lives in|is from) {city}, (number|phone) {phone}; (save|keep) that.",
        "(New contact|Contact) {name}, {phone}, {city}"}},
      {"calculate",
       "Applies one operation to two numbers",
       {integer("left", 0, 9999), chosen("operation", kOperations), integer("right", 1, 999)},
       {"(What is|What's|How much is) {left} {operation} {right}?",
        "(Calculate|Compute|Work out) {left} {operation} {right}.",
        "(Tell|Give) me {left} {operation} {right}.", "{left} {operation} {right}"}},
  };
  return kTools;
}

}  // namespace train
